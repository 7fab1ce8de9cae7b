#include "lockstep/engine/fused/faster_way.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/kernels/cuda/fused_rope_gemm.h"
#include "lockstep/kernels/cuda/fused_swiglu_gemm.h"

namespace lockstep::engine::cuda {
namespace {

constexpr const char* kFusedNote = "fused";

std::string sized(const char* name, std::int64_t rows, std::int64_t in, std::int64_t out) {
  return fmt::format("{} {}x{}x{}", name, rows, in, out);
}

}  // namespace

FusedWays::FusedWays(const FusedShape& s, const FusedOptions& o)
    : gate_up(sized("gate up swiglu", s.rows(), s.hidden, s.ffn),
              o.fused_mlp && kernels::cuda::fused_swiglu_forward_fits(s.rows(), s.hidden, s.ffn)),
      down(sized("down dgrad swiglu", s.rows(), s.hidden, s.ffn),
           o.fused_mlp && kernels::cuda::fused_swiglu_backward_fits(s.rows(), s.hidden, s.ffn)),
      qkv(sized("qkv rope", s.rows(), s.hidden, s.qkv_width()),
          o.fused_rope && kernels::cuda::fused_rope_fits({.rows = s.rows(),
                                                          .hidden = s.hidden,
                                                          .seq = s.seq,
                                                          .heads = s.heads + 2 * s.kv_heads,
                                                          .dim = s.head_dim})) {}

bool FasterWay::choose(Gemm& gemm, cudaStream_t stream, const std::function<void()>& fused,
                       const std::function<void()>& plain) {
  if (const std::string* known = gemm.noted(name_)) {
    way_ = *known == kFusedNote ? Way::kFused : Way::kPlain;
    return false;
  }
  constexpr int kRounds = 5;  // the first loads kernels and chooses the product's algorithm
  const auto timed = [&](const std::function<void()>& work) {
    Stopwatch watch;
    watch.start(stream);
    work();
    watch.stop(stream);
    return watch.milliseconds();
  };
  fused_ms_ = plain_ms_ = 1e30f;
  for (int round = 0; round < kRounds; ++round) {
    const float a = timed(plain), b = timed(fused);
    if (round == 0) continue;
    plain_ms_ = std::min(plain_ms_, a);
    fused_ms_ = std::min(fused_ms_, b);
  }
  way_ = fused_ms_ < plain_ms_ ? Way::kFused : Way::kPlain;
  gemm.note(name_, way_ == Way::kFused ? kFusedNote : "plain");
  return true;
}

Gemm::Choice FasterWay::choice() const {
  Gemm::Choice c;
  c.shape = name_;
  c.candidates = way_ == Way::kUnknown || plain_ms_ == 0 ? 1 : 2;
  c.chosen = way_ == Way::kFused ? 1 : 0;
  c.first_ms = plain_ms_;
  c.best_ms = std::min(plain_ms_, fused_ms_);
  return c;
}

}  // namespace lockstep::engine::cuda
