// A device trace of one process as the rules read it, whoever wrote it: what ran on the devices, and of the program
// only what explains why they did not.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/base/enum_names.h"

namespace lockstep::diagnose {

inline constexpr std::int64_t kNoTime = std::numeric_limits<std::int64_t>::min();
inline constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

// Times are nanoseconds of the trace's own clock.
struct Interval {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t length() const { return end - begin; }
  bool operator==(const Interval&) const = default;
};

enum class Work : std::uint8_t { kCompute = 0, kCommunication, kCopyIn, kCopyOut, kCopy, kFill };
constexpr auto names_of(Work) {
  return enum_names<Work::kFill>("compute", "communication", "copy_in", "copy_out", "copy", "fill");
}

// Something that ran on a device.
struct DeviceSlice {
  Interval time;
  Interval launch{kNoTime, kNoTime};  // the call of the program that asked for it
  std::uint32_t name = 0;
  std::uint32_t collective = kNone;  // index of Trace::collectives
  std::int32_t device = 0;
  std::int32_t stream = 0;
  Work work = Work::kCompute;
};

enum class HostWork : std::uint8_t {
  kNothing = 0,  // of no interest
  kStep,
  kLoader,
  kSynchronize,  // waits for the device
  kAllocate,     // asks the driver for memory, or gives it back
  kSave,         // writes a checkpoint
  kProfiler,     // the profiler's own work
  kCollective,   // a collective as the program sees it
  kRecompute,    // the backward pass of a checkpointed part
  kCompute,      // an operator; kept only where there is no device
};

struct HostSlice {
  Interval time;
  std::uint32_t name = 0;
  std::int64_t thread = 0;
  std::uint32_t collective = kNone;
  HostWork work = HostWork::kNothing;
};

// What the profiler tells of one collective.
struct Collective {
  std::string group;           // "": not told
  std::string op;              // "allreduce"
  std::int64_t sequence = -1;  // in its group
  double bytes = 0.0;          // what this rank puts in; 0: not told
  int members = 0;
};

struct Trace {
  std::string file;
  std::string kind;
  int rank = -1;  // -1: not told
  int world = 0;
  std::vector<std::string> names;
  std::vector<DeviceSlice> work;  // by device, then begin
  std::vector<HostSlice> host;    // by begin
  std::vector<Collective> collectives;
  std::map<int, std::string> device_names;
  // Of the calls that the driver counted, those that the trace holds. Some are never recorded (a fifth is usual); a
  // trace that was thinned out has a hundredth, and then its idle time says nothing.
  double calls_seen = 1.0;
  double memory_bytes = 0.0;       // of a device; 0: not told
  double peak_reserved_bytes = 0;  // by the allocator; 0: not told

  const std::string& name_of(std::uint32_t name) const { return names[name]; }
};

// Sorts work and host as promised above, drops what has no length of time or an absurd one.
void put_in_order(Trace& trace);

// What a name means. Kernels: communication by the libraries' names (NCCL, RCCL, NVSHMEM, ...).
bool is_communication(std::string_view kernel);
HostWork meaning_of_call(std::string_view call);        // of the CUDA or HIP runtime or driver
HostWork meaning_of_annotation(std::string_view name);  // of ranges and operators
Work meaning_of_copy(std::string_view name);            // "Memcpy HtoD (Pageable -> Device)"

// Every name once.
class NamePool {
 public:
  std::uint32_t add(std::string_view name);
  std::vector<std::string> take() { return std::move(names_); }
  const std::string& operator[](std::uint32_t index) const { return names_[index]; }

 private:
  struct Hash {
    using is_transparent = void;  // NOLINT(readability-identifier-naming): the library's name
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>> index_;
};

}  // namespace lockstep::diagnose
