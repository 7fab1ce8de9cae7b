// Mostly words: kernels, compiler, allocator, communication hook. Effects are tables drawn per instance: some knobs do
// nothing, some pairs interact, one narrow combination is faster than its parts promise, the loader makes a plateau,
// and some pairs crash without any rule that says so.
#include <algorithm>
#include <array>
#include <cmath>

#include "bench/tune/nccl_model.h"
#include "bench/tune/surfaces.h"

namespace lockstep::bench {
namespace {

constexpr std::size_t kKnobs = 11;
constexpr std::size_t kMostLevels = 8;

class Rugged final : public Surface {
 public:
  explicit Rugged(int instance) : Surface("rugged", instance) {
    Draws random = draws(4);
    fabric_ = draw_fabric(random, 8);
    nccl_facts_yaml_ = fabric_.yaml();
    add_knob({.name = "attention", .levels = levels_of({"math", "efficient", "flash", "cudnn"})});
    add_knob({.name = "compile", .levels = levels_of({"off", "default", "reduce_overhead", "max_autotune"})});
    add_knob({.name = "cuda_graphs",
              .levels = levels_bool(),
              .when = "compile != \"off\"",
              .parent = kCompile,
              .parent_levels = {1, 2, 3}});
    add_knob({.name = "matmul", .levels = levels_of({"highest", "high", "medium"})});
    add_knob({.name = "allocator", .levels = levels_of({"native", "expandable", "async"})});
    add_knob({.name = "comm_hook", .levels = levels_of({"none", "bf16", "power_sgd"})});
    for (SurfaceKnob& knob : nccl_knobs(4)) add_knob(std::move(knob));
    add_knob({.name = "loader", .levels = levels_of({"threads", "processes", "gpu"})});
    add_knob({.name = "log_every", .levels = levels_of({1, 10, 50, 100})});
    add_knob({.name = "micro_batch", .levels = levels_of({1, 2, 3, 4, 6, 8, 12, 16})});
    add_rule(nccl_rule(fabric_, {kAlgorithm, kProtocol}));
    draw_tables(random);
    fit_memory(random.uniform(0.25, 0.5));
  }

 private:
  enum { kAttention, kCompile, kGraphs, kMatmul, kAllocator, kHook, kAlgorithm, kProtocol, kLoader, kLog, kMicroBatch };
  using Table = std::array<std::array<double, kMostLevels>, kKnobs>;
  struct Pair {
    std::size_t first, second;
    std::array<std::array<double, kMostLevels>, kMostLevels> effect;
  };

  void draw_tables(Draws& random) {
    for (std::size_t k = 0; k < kKnobs; ++k) {
      // Two of three knobs matter, by very different amounts.
      const double size = k == kLog || random.chance(0.3) ? 0 : random.log_uniform(0.01, 0.1);
      for (std::size_t level = 0; level < kMostLevels; ++level) {
        compute_[k][level] = k == kMicroBatch ? 0 : random.normal(size);
        memory_[k][level] =
            k == kAttention || k == kCompile || k == kAllocator || k == kHook ? random.uniform(0, 0.45) : 0;
      }
    }
    memory_[kGraphs][1] = random.uniform(0.05, 0.4);
    for (int n = 0; n < 5; ++n) {
      Pair pair{.first = static_cast<std::size_t>(random.below(kLog)), .second = 0, .effect = {}};
      do {
        pair.second = static_cast<std::size_t>(random.below(kMicroBatch + 1));
      } while (pair.second == pair.first || pair.second == kLog);
      const double size = random.uniform(0.02, 0.05);
      for (auto& row : pair.effect) {
        for (double& effect : row) effect = random.normal(size);
      }
      pairs_.push_back(pair);
    }
    nccl_ = draw_costs(random, fabric_);
    half_batch_ = random.log_uniform(0.2, 1.2);
    volume_ = random.log_uniform(0.3, 3);
    load_ = {random.uniform(0.6, 1.3), random.uniform(0.6, 1.2), random.uniform(0.5, 1.1)};
    states_ = random.uniform(1, 8);
    sweet_ = random.uniform(0.04, 0.12);
    for (std::size_t k = 0; k < kKnobs; ++k)
      sweet_levels_[k] = random.below(static_cast<int>(knobs()[k].levels.size()));
    for (auto& crash : crashes_) {
      crash = {kAttention + random.below(3), random.below(2), kMatmul + random.below(3), 1 + random.below(2)};
    }
    for (auto& row : doubt_) {
      for (double& value : row) value = random.normal(0.06);
    }
  }

  bool crashes(PointView p) const {
    return std::ranges::any_of(crashes_, [&](const std::array<int, 4>& crash) {
      // The default never does: its levels of the second knob are 0.
      return p[static_cast<std::size_t>(crash[0])] == crash[1] + 1 && p[static_cast<std::size_t>(crash[2])] == crash[3];
    });
  }

  Prediction predict(PointView p, bool as_believed) const override {
    double log_compute = 0, log_memory = 0;
    for (std::size_t k = 0; k < kKnobs; ++k) {
      if (p[k] < 0) continue;
      const auto level = static_cast<std::size_t>(p[k]);
      log_compute += compute_[k][level] + (as_believed && k != kMicroBatch && k != kLog ? doubt_[k][level] : 0);
      log_memory += memory_[k][level];
    }
    if (!as_believed) {
      for (const Pair& pair : pairs_) {
        if (p[pair.first] < 0 || p[pair.second] < 0) continue;
        log_compute += pair.effect[static_cast<std::size_t>(p[pair.first])][static_cast<std::size_t>(p[pair.second])];
      }
      const bool sweet = p[kAttention] == sweet_levels_[kAttention] && p[kAllocator] == sweet_levels_[kAllocator] &&
                         p[kCompile] == sweet_levels_[kCompile];
      if (sweet) log_compute -= sweet_;
    }
    const double micro = number_of(knobs()[kMicroBatch].levels[static_cast<std::size_t>(p[kMicroBatch])]);
    const double hook = std::array{1.0, 0.5, 0.15}[static_cast<std::size_t>(p[kHook])];
    const double compute = (micro + half_batch_) * std::exp(log_compute) + (p[kHook] == 2 ? 0.5 : 0);
    const double reduce = nccl_.seconds(fabric_, p[kAlgorithm], p[kProtocol], volume_ * hook, 0.5);
    const double step = compute + std::max(0.1 * reduce, reduce - 0.5 * compute);
    const double per_sample = std::max(step / micro, load_[static_cast<std::size_t>(p[kLoader])]);
    const double memory = states_ + micro * std::exp(log_memory) + (p[kAlgorithm] >= kNvls ? 0.3 : 0);
    return {.step_seconds = per_sample, .memory = memory, .refused = !as_believed && crashes(p)};
  }

  NcclFabric fabric_;
  NcclCosts nccl_;
  Table compute_{}, memory_{}, doubt_{};  // natural logarithms of time and memory by level
  std::vector<Pair> pairs_;
  std::array<int, kKnobs> sweet_levels_{};
  std::array<std::array<int, 4>, 2> crashes_{};  // knob, level, knob, level
  std::array<double, 3> load_{};                 // seconds per sample that the loader needs
  double half_batch_ = 1, volume_ = 1, states_ = 1, sweet_ = 0.05;
};

}  // namespace

std::unique_ptr<Surface> make_rugged(int instance) { return std::make_unique<Rugged>(instance); }

}  // namespace lockstep::bench
