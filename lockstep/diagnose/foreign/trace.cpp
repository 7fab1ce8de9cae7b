#include "lockstep/diagnose/foreign/trace.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "lockstep/base/text.h"

namespace lockstep::diagnose {
namespace {

bool has(std::string_view text, std::string_view piece) { return text.find(piece) != std::string_view::npos; }

template <std::size_t kCount>
bool has_one(std::string_view text, const std::array<std::string_view, kCount>& pieces) {
  return std::ranges::any_of(pieces, [&](std::string_view piece) { return has(text, piece); });
}

constexpr std::int64_t kLongest = std::int64_t{86'400'000'000'000} * 365;  // of a slice, ns

// What is left begins and ends so that the time between any two of them fits.
template <class Slice>
void drop_absurd(std::vector<Slice>& slices) {
  std::erase_if(slices, [](const Slice& slice) {
    return slice.time.end < slice.time.begin || slice.time.begin < -kLongest * 100 || slice.time.end > kLongest * 150 ||
           slice.time.length() > kLongest;
  });
}

}  // namespace

void put_in_order(Trace& trace) {
  drop_absurd(trace.work);
  drop_absurd(trace.host);
  const auto work_before = [](const DeviceSlice& a, const DeviceSlice& b) {
    return std::tie(a.device, a.time.begin, a.time.end) < std::tie(b.device, b.time.begin, b.time.end);
  };
  const auto host_before = [](const HostSlice& a, const HostSlice& b) {
    return std::tie(a.time.begin, b.time.end) < std::tie(b.time.begin, a.time.end);
  };
  if (!std::ranges::is_sorted(trace.work, work_before)) std::ranges::sort(trace.work, work_before);
  if (!std::ranges::is_sorted(trace.host, host_before)) std::ranges::sort(trace.host, host_before);
}

bool is_communication(std::string_view kernel) {
  constexpr std::array<std::string_view, 11> kLibraries = {"nccl",         "rccl",         "msccl",    "nvshmem",
                                                           "oneccl",       "deep_ep",      "symm_mem", "cross_device_",
                                                           "one_shot_all", "two_shot_all", "multimem_"};
  return has_one(to_lower(kernel), kLibraries);
}

Work meaning_of_copy(std::string_view name) {
  const std::string lower = to_lower(name);
  if (has(lower, "htod") || has(lower, "host-to-device")) return Work::kCopyIn;
  if (has(lower, "dtoh") || has(lower, "device-to-host")) return Work::kCopyOut;
  if (has(lower, "ptop") || has(lower, "peer")) return Work::kCommunication;  // one GPU to another
  return Work::kCopy;
}

HostWork meaning_of_call(std::string_view call) {
  constexpr std::array<std::string_view, 4> kWaits = {"Synchronize", "cudaMemcpy_", "hipMemcpyWithStream",
                                                      "EventSynchronize"};
  constexpr std::array<std::string_view, 10> kMemory = {"cudaMalloc",   "cudaFree",  "hipMalloc",   "hipFree",
                                                        "cuMemAlloc",   "cuMemFree", "cuMemCreate", "cuMemMap",
                                                        "cuMemRelease", "cuMemUnmap"};
  if (has_one(call, kWaits)) return HostWork::kSynchronize;
  // Taking from a pool that lives on the device costs nothing.
  if (has_one(call, kMemory) && !has(call, "Async")) return HostWork::kAllocate;
  return HostWork::kNothing;
}

HostWork meaning_of_annotation(std::string_view name) {
  if (name.starts_with("ProfilerStep")) return HostWork::kStep;
  if (name == "record_param_comms" || name.starts_with("nccl:") || name.starts_with("gloo:") ||
      name.starts_with("mpi:") || name.starts_with("ucc:")) {
    return HostWork::kCollective;
  }
  const std::string lower = to_lower(name);
  constexpr std::array<std::string_view, 9> kLoader = {"dataloader", "datapipe",   "data_load",
                                                       "data load",  "dataload",   "next_batch",
                                                       "get_batch",  "load_batch", "fetch_batch"};
  constexpr std::array<std::string_view, 5> kSave = {"torch.save", "torch/serialization.py", "save_checkpoint",
                                                     "checkpoint_save", "save checkpoint"};
  if (has(lower, "checkpointfunctionbackward") || has(lower, "recompute")) return HostWork::kRecompute;
  if (has_one(lower, kSave)) return has(lower, "load") ? HostWork::kNothing : HostWork::kSave;
  if (!lower.starts_with("aten::") && has_one(lower, kLoader)) return HostWork::kLoader;
  return HostWork::kNothing;
}

std::uint32_t NamePool::add(std::string_view name) {
  const auto found = index_.find(name);
  if (found != index_.end()) return found->second;
  const auto number = static_cast<std::uint32_t>(names_.size());
  names_.emplace_back(name);
  index_.emplace(std::string(name), number);
  return number;
}

}  // namespace lockstep::diagnose
