// Where the time of a step goes, by kernel family: NVTX ranges always, CUDA events around every operation on request.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::engine::cuda {

enum class Family { kGemm, kAttention, kNorm, kRope, kSwiglu, kLoss, kEmbedding, kQuantize, kOptimizer, kCopy, kCount };
const char* to_string(Family family);

class StepTimeline {
 public:
  StepTimeline() = default;
  ~StepTimeline();
  StepTimeline(const StepTimeline&) = delete;
  StepTimeline& operator=(const StepTimeline&) = delete;

  // From now on scopes record events; earlier records are dropped. Not during a capture.
  void start_recording(cudaStream_t stream);
  void stop_recording() { recording_ = false; }

  // An operation lasts as long as its scope. `name` must outlive the timeline (a literal).
  class Scope {
   public:
    Scope(StepTimeline& timeline, Family family, const char* name);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    StepTimeline& timeline_;
  };

  struct Operation {
    Family family;
    const char* name;
    double begin_ms, end_ms;  // since start_recording
  };
  // Waits for the stream.
  std::vector<Operation> operations() const;
  static std::array<double, static_cast<int>(Family::kCount)> by_family(const std::vector<Operation>& operations);
  // The Chrome trace event format, which Perfetto reads.
  static std::string chrome_trace(const std::vector<Operation>& operations);

 private:
  struct Record {
    Family family;
    const char* name;
    cudaEvent_t begin, end;
  };
  cudaEvent_t take_event();

  bool recording_ = false;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t origin_ = nullptr;
  std::vector<Record> records_;
  std::vector<cudaEvent_t> events_;  // owned
  std::size_t used_events_ = 0;
};

}  // namespace lockstep::engine::cuda
