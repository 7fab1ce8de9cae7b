#include "lockstep/engine/fused/step_timeline.h"

#include <nvtx3/nvToolsExt.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/enum_names.h"
#include "lockstep/kernels/cuda/check.h"

namespace lockstep::engine::cuda {

const char* to_string(Family family) {
  return named<Family::kCopy>(family, "gemm", "attention", "norm", "rope", "swiglu", "loss", "embedding", "quantize",
                              "optimizer", "copy");
}

StepTimeline::~StepTimeline() {
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
}

cudaEvent_t StepTimeline::take_event() {
  if (used_events_ == events_.size()) {
    cudaEvent_t event = nullptr;
    LOCKSTEP_CUDA(cudaEventCreate(&event));
    events_.push_back(event);
  }
  return events_[used_events_++];
}

void StepTimeline::start_recording(cudaStream_t stream) {
  records_.clear();
  used_events_ = 0;
  stream_ = stream;
  recording_ = true;
  origin_ = take_event();
  LOCKSTEP_CUDA(cudaEventRecord(origin_, stream_));
}

StepTimeline::Scope::Scope(StepTimeline& timeline, Family family, const char* name) : timeline_(timeline) {
  nvtxRangePushA(name);
  if (!timeline_.recording_) return;
  Record record{family, name, timeline_.take_event(), nullptr};
  LOCKSTEP_CUDA(cudaEventRecord(record.begin, timeline_.stream_));
  timeline_.records_.push_back(record);
}

StepTimeline::Scope::~Scope() {
  nvtxRangePop();
  if (!timeline_.recording_) return;
  Record& record = timeline_.records_.back();
  record.end = timeline_.take_event();
  cudaEventRecord(record.end, timeline_.stream_);  // an error shows again when the event is read
}

std::vector<StepTimeline::Operation> StepTimeline::operations() const {
  LOCKSTEP_CUDA(cudaStreamSynchronize(stream_));
  std::vector<Operation> all;
  for (const Record& record : records_) {
    float begin = 0, end = 0;
    LOCKSTEP_CUDA(cudaEventElapsedTime(&begin, origin_, record.begin));
    LOCKSTEP_CUDA(cudaEventElapsedTime(&end, origin_, record.end));
    all.push_back({record.family, record.name, begin, end});
  }
  return all;
}

std::array<double, static_cast<int>(Family::kCount)> StepTimeline::by_family(const std::vector<Operation>& operations) {
  std::array<double, static_cast<int>(Family::kCount)> sums{};
  for (const Operation& o : operations) sums[static_cast<int>(o.family)] += o.end_ms - o.begin_ms;
  return sums;
}

std::string StepTimeline::chrome_trace(const std::vector<Operation>& operations) {
  nlohmann::json events = nlohmann::json::array();
  for (int f = 0; f < static_cast<int>(Family::kCount); ++f)
    events.push_back({{"ph", "M"},
                      {"pid", 0},
                      {"tid", f},
                      {"name", "thread_name"},
                      {"args", {{"name", to_string(static_cast<Family>(f))}}}});
  for (const Operation& o : operations)
    events.push_back({{"ph", "X"},
                      {"pid", 0},
                      {"tid", static_cast<int>(o.family)},
                      {"name", o.name},
                      {"cat", to_string(o.family)},
                      {"ts", o.begin_ms * 1e3},
                      {"dur", (o.end_ms - o.begin_ms) * 1e3}});
  return nlohmann::json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump();
}

}  // namespace lockstep::engine::cuda
