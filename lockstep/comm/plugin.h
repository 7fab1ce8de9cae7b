/* The C interface between liblockstep and a communicator plugin (liblockstep_comm_<backend>.so).
 *
 * A plugin exports one function, `lockstep_comm_plugin`, that returns a table. Only plain values cross: no exceptions,
 * no C++ objects, no memory that the other side frees. So a plugin may be built by another compiler and may bring
 * libraries that must not meet those of the engine. comm/plugin_export.h turns a C++ Backend into such a table.
 */
#ifndef LOCKSTEP_COMM_PLUGIN_H
#define LOCKSTEP_COMM_PLUGIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LOCKSTEP_COMM_ABI 2u
#define LOCKSTEP_COMM_ENTRY "lockstep_comm_plugin"

/* NOLINTBEGIN(readability-identifier-naming,modernize-use-using): an interface of C, with names of C. */
enum lockstep_comm_code {
  LOCKSTEP_COMM_OK = 0,
  LOCKSTEP_COMM_PEER_LOST = 1,
  LOCKSTEP_COMM_TIMEOUT = 2,
  LOCKSTEP_COMM_ABORTED = 3,
  LOCKSTEP_COMM_BAD_INPUT = 4,
  LOCKSTEP_COMM_ENVIRONMENT = 5
};

/* How a call ended. `rank` is the rank in the group that caused it, or -1. For BAD_INPUT and ENVIRONMENT the text is
 * "problem\nfix". */
struct lockstep_comm_status {
  int32_t code;
  int32_t rank;
  char text[1024];
};

/* The host's rendezvous store. Calls return 0, or a lockstep_comm_code. `get` writes at most `capacity` bytes and sets
 * *length to the value's length; timeout_ms < 0 asks without waiting (TIMEOUT: absent). Any thread. */
struct lockstep_comm_store {
  void* self;
  int32_t (*set)(void* self, const char* key, const char* value, int64_t length);
  int32_t (*get)(void* self, const char* key, int64_t timeout_ms, char* value, int64_t capacity, int64_t* length);
  int32_t (*add)(void* self, const char* key, int64_t delta, int64_t* result);
  int32_t (*remove)(void* self, const char* key);
};

/* Mirrors comm::GroupSettings. */
struct lockstep_comm_group_settings {
  const char* group;
  const char* algorithm;
  const char* protocol;
  int32_t min_channels;
  int32_t max_channels;
};

/* Pointers are valid during the call only, except `store`, which lives until the last group is closed. */
struct lockstep_comm_open_options {
  int32_t rank;
  int32_t size;
  const char* name;   /* of the group of all ranks */
  const char* prefix; /* of all store keys */
  const char* address;
  const char* interface_name;
  int32_t device;
  int32_t shared_memory;
  int64_t connect_timeout_ms;
  const struct lockstep_comm_group_settings* groups;
  int32_t group_count;
  const struct lockstep_comm_store* store; /* NULL: none */
};

/* Mirrors comm::Operation. */
struct lockstep_comm_operation {
  int32_t kind;
  int32_t dtype;
  int32_t reduce;
  int32_t peer;
  int64_t sequence;
  const void* input;
  int64_t input_count;
  void* output;
  int64_t output_count;
  const int64_t* send_counts;    /* all_to_all: one per rank; else NULL */
  const int64_t* receive_counts; /* all_to_all: one per rank; else NULL */
  int32_t device;                /* of the buffers; -1: host memory */
  void* stream;
  void* ticket;
};

/* Deadlines are nanoseconds of CLOCK_MONOTONIC. `group` is what open or subgroup returned. The meaning of each call is
 * that of the Backend method of the same name. */
struct lockstep_comm_table {
  uint32_t abi; /* LOCKSTEP_COMM_ABI */
  const char* name;
  void* (*open)(const struct lockstep_comm_open_options* options, struct lockstep_comm_status* status);
  void* (*subgroup)(void* group, const int32_t* ranks, int32_t count, const char* name, int64_t deadline_ns,
                    struct lockstep_comm_status* status);
  int32_t (*concurrent_point_to_point)(void* group);
  void* (*prepare)(void* group, const struct lockstep_comm_operation* operation, struct lockstep_comm_status* status);
  void (*run)(void* group, const struct lockstep_comm_operation* operation, int64_t deadline_ns,
              struct lockstep_comm_status* status);
  int32_t (*join)(void* group, const struct lockstep_comm_operation* operation, struct lockstep_comm_status* status);
  void (*abort)(void* group);
  void (*close)(void* group);
};

typedef const struct lockstep_comm_table* (*lockstep_comm_entry)(void);

/* NOLINTEND(readability-identifier-naming,modernize-use-using) */
#ifdef __cplusplus
}
#endif

#endif
