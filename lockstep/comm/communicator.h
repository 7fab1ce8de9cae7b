// Communicator: how ranks exchange data. A cheap handle; copies share one group.
//
//   Communicator comm = comm::open_communicator({.backend = "gloo", .rank = r, .size = n, .store = store});
//   Work work = comm.all_reduce({gradients, count, DType::kF32});
//   ...compute...
//   work.wait();
//
// Order. Collectives of one group are executed one after the other in the order they were called; every rank must call
// them in the same order. send and recv are executed apart from the collectives and from each other; messages between
// two ranks arrive in the order they were sent. (On nccl everything of a group is executed in call order, so both ends
// of a pair must call in matching order.)
//
// Threads. All methods may be called from any thread. Operations are executed by threads of the group, which sleep
// while they wait, so an operation overlaps with what the caller computes meanwhile.
//
// Devices. Buffers in device memory are ordered with the stream they name: the operation begins after what the caller
// has queued there, and when wait() has returned, what the caller queues there comes after the operation. wait() need
// not wait for the device itself.
//
// Time. Every operation has a timeout (OpOptions, or the group's default), counted from when it starts to execute.
//
// Failure. wait() throws Fault{kPeerLost | kTimeout | kAborted} with the global rank believed to be the cause, or -1:
//   all_reduce #1234 of 25.0 MiB in group "dp": rank 2 closed the connection
// The first failure poisons the group: everything in flight and everything later fails at once with that root cause.
// Wrong arguments throw bad_input from the call itself and poison nothing.
//
// End. When the last copy of a handle goes, operations in flight are aborted (their Work throws kAborted) and the
// group's threads end. Ranks that stop at different moments should pass a barrier first.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/dtype.h"

namespace lockstep::elastic {
class KeyValueStore;
}
namespace lockstep::telemetry {
class SpanLog;
}

namespace lockstep::comm {

class Backend;
class Group;
struct WorkState;
using std::chrono::milliseconds;

enum class OpKind : std::int32_t {
  kAllReduce = 0,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kAllToAll,
  kSend,
  kRecv,
  kBarrier,
};
inline constexpr int kOpKinds = 8;
constexpr auto names_of(OpKind) {
  return enum_names<OpKind::kBarrier>("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send",
                                      "recv", "barrier");
}

struct OpOptions {
  milliseconds timeout{0};  // 0: the group's default
  const char* site = "";    // where the program calls it ("tp: attention output"); a literal, kept by reference
};
inline OpOptions at_site(const char* site) { return {.timeout = milliseconds{0}, .site = site}; }

// Handle of one operation. A default-constructed Work is done.
class Work {
 public:
  Work() = default;

  // Blocks until the operation is done, at most until its deadline; throws Fault when it failed.
  void wait();

  // Blocks at most `limit`; returns whether the operation is done. Throws Fault when it failed.
  bool wait_for(milliseconds limit);

  // Whether the operation is over, successfully or not. Never blocks.
  bool done() const;

  // wait() that swallows a failure: for destructors, whose memory the operation may still use.
  void settle() noexcept;

 private:
  friend class Group;
  explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}
  std::shared_ptr<WorkState> state_;
};

// Payload of this rank, counted when an operation is called. Bytes are a definition, not what a wire carried:
//   all_reduce      count x element size
//   reduce_scatter  the whole input
//   all_gather      the whole output
//   broadcast       count x element size (on every rank)
//   all_to_all      the whole input, the part that stays on this rank included
//   send, recv      count x element size
//   barrier         0
struct Traffic {
  struct Entry {
    std::int64_t operations = 0;
    std::int64_t bytes = 0;
  };
  Entry entries[kOpKinds];

  const Entry& operator[](OpKind kind) const { return entries[static_cast<int>(kind)]; }
  std::int64_t total_bytes() const;
};

// One line of the flight record: what the group did last.
struct FlightEntry {
  enum class State { kQueued, kRunning, kDone, kFailed };
  std::int64_t sequence = 0;  // counts the operations of the group from 1
  OpKind kind = OpKind::kBarrier;
  std::int64_t bytes = 0;
  int peer = -1;  // root, destination or source (rank in the group); -1 for the others
  State state = State::kQueued;
};

// An operation that is being executed.
struct RunningOperation {
  std::string group;          // its name
  std::vector<int> members;   // global ranks
  std::int64_t sequence = 0;  // of the operation among the group's collectives, or the messages of a pair
  OpKind kind = OpKind::kBarrier;
  std::int64_t bytes = 0;
  int peer = -1;  // global rank; -1: none
  std::string site;
  double seconds = 0.0;  // since it began
  double timeout_seconds = 0.0;
};

class Communicator {
 public:
  Communicator() = default;  // empty; only valid() may be called

  // `global_ranks[i]` is the global rank of member i; empty means 0..size-1.
  Communicator(std::unique_ptr<Backend> backend, std::string name, std::vector<int> global_ranks,
               milliseconds default_timeout);

  bool valid() const { return group_ != nullptr; }
  int rank() const;
  int size() const;
  int global_rank(int member) const;
  const std::string& name() const;
  const std::string& backend_name() const;
  milliseconds timeout() const;

  // In place.
  Work all_reduce(Buffer buffer, ReduceOp op = ReduceOp::kSum, OpOptions options = {});

  // Rank r receives the reduction of slice r; input.count == output.count x size(). The output may be this rank's slice
  // of the input, and must not overlap it otherwise.
  Work reduce_scatter(ConstBuffer input, Buffer output, ReduceOp op = ReduceOp::kSum, OpOptions options = {});

  // output.count == input.count x size(). The input may be this rank's slice of the output.
  Work all_gather(ConstBuffer input, Buffer output, OpOptions options = {});

  Work broadcast(Buffer buffer, int root, OpOptions options = {});

  // Equal slices: input.count == output.count, divisible by size(). Buffers must not overlap.
  Work all_to_all(ConstBuffer input, Buffer output, OpOptions options = {});

  // Uneven slices, back to back: send_counts[i] elements go to rank i, receive_counts[i] come from rank i.
  Work all_to_all(ConstBuffer input, const std::vector<std::int64_t>& send_counts, Buffer output,
                  const std::vector<std::int64_t>& receive_counts, OpOptions options = {});

  // Peers are ranks of this group, other than this rank. Counts and dtypes must agree on both ends.
  Work send(ConstBuffer buffer, int destination, OpOptions options = {});
  Work recv(Buffer buffer, int source, OpOptions options = {});

  Work barrier(OpOptions options = {});

  // The group of the named members (ranks of this group, each once; rank i of the result is ranks[i]). Called by
  // exactly these members, with the same arguments, in the same order relative to the collectives of this group.
  // Blocks, at most for the timeout. Names need not be unique.
  Communicator subgroup(const std::vector<int>& ranks, const std::string& name);

  Traffic traffic() const;
  void reset_traffic();
  std::vector<FlightEntry> flight_record() const;

  // Of this group and those that were made of it, the longest first. Never blocks for long.
  std::vector<RunningOperation> running() const;

  // Operations that are called from now on become spans of `log`, also those of sub-groups made from now on; a thread
  // that waits for one records that too where it works for a rank (telemetry::CurrentSpanLog). Null: none.
  void record_to(std::shared_ptr<telemetry::SpanLog> log);

  // Fails everything in flight and later with kAborted, in its sub-groups too, here and (as a lost peer) on the other
  // ranks.
  void abort(const std::string& reason);

 private:
  std::shared_ptr<Group> group_;
};

// nccl: how the groups of one name communicate ("" or 0: NCCL's choice). Names are NCCL's own.
struct GroupSettings {
  std::string group;      // "dp", "tp", ...; "*": every group without an entry of its own
  std::string algorithm;  // NCCL_ALGO: Ring, Tree, ...
  std::string protocol;   // NCCL_PROTO: LL, LL128, Simple
  int min_channels = 0;
  int max_channels = 0;
};

struct CommOptions {
  std::string backend = "gloo";  // tcp, gloo, mpi or nccl; `local` comes from LocalWorld (comm/local.h)
  int rank = 0;
  int size = 1;
  std::string name = "world";
  // Where the ranks meet; needed by gloo and nccl. Kept by the communicator, sub-groups use it later.
  std::shared_ptr<elastic::KeyValueStore> store;
  std::string store_prefix = "comm";  // must differ between two worlds that share a store (a restart, say)
  std::string address = "127.0.0.1";  // gloo: address of this host to bind to
  std::string interface;              // gloo: network interface to bind to, instead of `address`
  int device = 0;                     // nccl: CUDA device of this rank
  std::vector<GroupSettings> groups;  // nccl
  bool shared_memory = true;          // gloo: reduce through shared memory where all ranks of a group share the host
  milliseconds timeout{300'000};      // default of every operation
  milliseconds connect_timeout{60'000};
  std::vector<std::filesystem::path> plugin_folders;  // searched first; then LOCKSTEP_PLUGIN_PATH, the folder of this
                                                      // library or executable, ../lib and ../lib/lockstep beside it
};

// Opens the plugin and connects; blocks until all ranks are there. Throws environment_error when the plugin or a
// library that it needs is missing, bad_input for wrong options, Fault when the other ranks do not come.
Communicator open_communicator(const CommOptions& options);

}  // namespace lockstep::comm
