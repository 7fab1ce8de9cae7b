// dev_words: a stack put together of implementations: attention, compiler, allocator, optimizer, precision. Nearly all
// knobs are words or switches; some exist only with others; effects multiply, a few pairs suit each other or crash, and
// most of the gain sits in three of eleven knobs.
#include <algorithm>
#include <array>
#include <cmath>

#include "bench/tune/lab_families.h"
#include "bench/tune/lab_surface.h"

namespace lockstep::bench {
namespace {

constexpr std::size_t kKnobs = 11, kMost = 9;
using Row = std::array<double, kMost>;

class DevWords final : public LabSurface {
 public:
  explicit DevWords(int instance) : LabSurface("dev_words", instance) {
    add_knob(choices_knob("attn_implementation", levels_of({"eager", "sdpa", "flash2", "flex", "xformers"})));
    add_knob(choices_knob("torch_compile", levels_of({"off", "default", "reduce-overhead", "max-autotune"})));
    add_knob(only_when(choices_knob("compile_dynamic", levels_of({"auto", "on", "off"})), "torch_compile != \"off\"",
                       kCompile, {1, 2, 3}));
    add_knob(only_when(choices_knob("fullgraph", levels_bool()), "torch_compile != \"off\"", kCompile, {1, 2, 3}));
    add_knob(choices_knob("optimizer_impl", levels_of({"foreach", "fused", "for-loop", "8bit"})));
    add_knob(choices_knob("matmul_precision", levels_of({"highest", "high", "medium"})));
    add_knob(choices_knob("cuda_allocator", levels_of({"native", "expandable_segments", "cudaMallocAsync"})));
    add_knob(choices_knob("norm_impl", levels_of({"torch", "apex", "triton", "liger"})));
    add_knob(choices_knob("loss_impl", levels_of({"full_logits", "chunked", "liger"})));
    add_knob(choices_knob("channels_last", levels_bool()));
    add_knob(choices_knob("micro_batch", levels_of({1, 2, 4, 6, 8, 12, 16, 24, 32})));
    Draws random = draws(1);
    std::array<double, kKnobs> sizes{};
    for (std::size_t k = 0; k < kKnobs; ++k) sizes[k] = random.log_uniform(0.004, 0.03);
    for (int strong = 0; strong < 3; ++strong)
      sizes[static_cast<std::size_t>(random.below(10))] = random.uniform(0.06, 0.15);
    for (std::size_t k = 0; k < kKnobs; ++k) {
      for (double& effect : time_[k]) effect = k == kMicro ? 0 : random.normal(sizes[k]);
      for (double& effect : memory_[k]) effect = k == kMicro ? 0 : random.uniform(0, 0.25);
    }
    for (Pair& pair : pairs_) {
      pair.first = static_cast<std::size_t>(random.below(5));
      pair.second = 5 + static_cast<std::size_t>(random.below(6));
      for (Row& row : pair.effect) {
        for (double& effect : row) effect = random.normal(0.05);
      }
    }
    for (Crash& crash : crashes_)
      crash = {random.below(2), 1 + random.below(3), 4 + random.below(5), 1 + random.below(2)};
    fixed_ = random.log_uniform(0.3, 4);
    constant_memory_ = random.uniform(4, 14);
    fit(random.uniform(0.2, 0.45), 0);
  }

 private:
  enum { kAttention, kCompile, kDynamic, kFullgraph, kOptimizer, kMatmul, kAllocator, kNorm, kLoss, kLast, kMicro };
  struct Pair {
    std::size_t first, second;
    std::array<Row, kMost> effect;
  };
  struct Crash {
    int knob, level, other, other_level;
  };

  Load load(PointView p) const override {
    // What crashes never has the other knob at its first level, so the default runs.
    for (const Crash& crash : crashes_) {
      if (level(p, crash.knob) == crash.level && level(p, crash.other) == crash.other_level)
        return {.refused = "RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered"};
    }
    double log_time = 0, log_memory = 0;
    for (std::size_t k = 0; k < kKnobs; ++k) {
      if (p[k] < 0) continue;
      log_time += time_[k][static_cast<std::size_t>(p[k])];
      log_memory += memory_[k][static_cast<std::size_t>(p[k])];
    }
    for (const Pair& pair : pairs_) {
      if (p[pair.first] >= 0)
        log_time += pair.effect[static_cast<std::size_t>(p[pair.first])][static_cast<std::size_t>(p[pair.second])];
    }
    const double micro = number(p, kMicro);
    // Compiling shortens what does not scale with the batch.
    const double fixed = fixed_ * std::array{1.0, 0.8, 0.35, 0.6}[static_cast<std::size_t>(level(p, kCompile))];
    return {.step_seconds = (fixed + micro) * std::exp(log_time) / micro,
            .device = constant_memory_ + micro * std::exp(log_memory)};
  }

  std::array<Row, kKnobs> time_{}, memory_{};
  std::array<Pair, 4> pairs_{};
  std::array<Crash, 3> crashes_{};
  double fixed_, constant_memory_;
};

}  // namespace

std::unique_ptr<Surface> make_dev_words(int instance) { return std::make_unique<DevWords>(instance); }

}  // namespace lockstep::bench
