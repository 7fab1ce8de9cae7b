// What NCCL's environment variables do to a collective, relative to what NCCL chooses by itself. Pure functions.
//
// MODEL ASSUMPTIONS, not measurements of a cluster: fitted profiles know NCCL only as their runs left it, so a variable
// that is set is priced by the ratio (as set) / (as NCCL chooses), both from the same small model. Sources:
//   shares of bandwidth and latencies  NCCL's own tuner, src/graph/tuning.cc of 2.20: LL stores a flag beside every
//                                      word of data and reaches a third to a quarter of the link, LL128 carries 120 of
//                                      128 bytes, Simple all of it at the highest latency; trees lose 8% to 22%
//   NVLS                               NVIDIA reports 1.3 times the ring's all-reduce on eight H100 (NCCL 2.17)
//   threads, buffers, channels         saturating curves through NCCL's defaults (512 threads, 4 MiB, 24 channels);
//                                      what channels take from compute follows Isaev et al. 2023 (Calculon): 15% of the
//                                      SMs while NVLink is busy
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/cost/profile/profile.h"

namespace lockstep::cost {

struct GroupPlacement;

enum class NcclAlgorithm { kAutomatic, kRing, kTree, kNvls, kNvlsTree, kOther };
enum class NcclProtocol { kAutomatic, kLl, kLl128, kSimple };

// 0 and kAutomatic: not set.
struct NcclKnobs {
  NcclAlgorithm algorithm = NcclAlgorithm::kAutomatic;
  NcclAlgorithm all_reduce = NcclAlgorithm::kAutomatic;  // "ring;allreduce:tree"; not set: `algorithm` holds for it too
  NcclProtocol protocol = NcclProtocol::kAutomatic;
  std::int32_t threads = 0;   // NCCL_NTHREADS
  std::int32_t channels = 0;  // NCCL_MIN_NCHANNELS or NCCL_MAX_NCHANNELS, where it changes the usual number
  double buffer_bytes = 0;    // NCCL_BUFFSIZE
  bool is_set() const { return *this != NcclKnobs(); }
  bool operator==(const NcclKnobs&) const = default;
};

// Takes one environment variable; false: it is none that this model knows. Values that NCCL would not understand count
// as not set, lists ("Ring,Tree") as NCCL's own choice. Of algorithms by collective ("ring;allreduce:tree") those of
// all-reduce count.
bool set_nccl_variable(NcclKnobs& knobs, std::string_view name, std::string_view value);

// Why NCCL refuses the pair of algorithm and protocol on such nodes; nothing when it runs.
std::optional<std::string> find_nccl_problem(const NcclKnobs& knobs, std::int64_t nodes, bool has_nvls);

// Seconds of the collective with `knobs` over seconds as NCCL chooses; 1 where nothing is set. `bus` in bytes per
// second. A collective that the algorithm does not offer runs as NCCL's ring.
double nccl_time_ratio(const NcclKnobs& knobs, const GroupPlacement& group, CollectiveOp op, double bytes, double bus,
                       bool has_nvls);

// Factor on what a hidden collective takes from the compute beside it (overlap_slowdown - 1).
double nccl_contention(const NcclKnobs& knobs);

}  // namespace lockstep::cost
