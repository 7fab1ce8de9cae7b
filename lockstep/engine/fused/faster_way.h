// Which of two ways to do the same work is the faster one on this device.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "lockstep/engine/fused/gemm.h"
#include "lockstep/engine/fused/options.h"

namespace lockstep::engine::cuda {

// A fused kernel beside the kernels it stands for. One thread, one stream at a time.
class FasterWay {
 public:
  // `name` says what work of which sizes. Not allowed: always the plain way.
  FasterWay(std::string name, bool allowed) : name_(std::move(name)), way_(allowed ? Way::kUnknown : Way::kPlain) {}

  // Both enqueue the same work on `stream`. The first call asks gemm's table, or else does the work several times
  // each way, times that, waits and notes the choice: it must not be captured. Where the work changes its own input,
  // `restore` makes it anew after the timing: products that come next choose their algorithms on real values (zeros,
  // which repeated gradients sink to, cost less power).
  template <class Fused, class Plain, class Restore>
  void run(Gemm& gemm, cudaStream_t stream, const Fused& fused, const Plain& plain, const Restore& restore) {
    if (way_ == Way::kUnknown && choose(gemm, stream, fused, plain)) restore();
    if (way_ == Way::kFused)
      fused();
    else
      plain();
  }
  template <class Fused, class Plain>
  void run(Gemm& gemm, cudaStream_t stream, const Fused& fused, const Plain& plain) {
    run(gemm, stream, fused, plain, [] {});
  }
  // As one more choice among algorithms: first_ms is the plain way's; chosen 1 is the fused one.
  Gemm::Choice choice() const;

 private:
  enum class Way { kUnknown, kPlain, kFused };
  // Whether the work was done for it; false: the table knew.
  bool choose(Gemm& gemm, cudaStream_t stream, const std::function<void()>& fused, const std::function<void()>& plain);

  std::string name_;
  Way way_;
  float fused_ms_ = 0, plain_ms_ = 0;
};

// The fused kernels of the dense step.
struct FusedWays {
  FusedWays(const FusedShape& shape, const FusedOptions& options);
  FasterWay gate_up, down, qkv;
};

}  // namespace lockstep::engine::cuda
