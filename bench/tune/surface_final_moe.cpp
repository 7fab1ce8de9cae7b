// final_moe: experts spread over ranks. Narrow groups stay in a node and hold many experts each; wide ones exchange
// tokens across nodes, which another library does better: two good regions with a ridge between them. Capacity drops
// tokens or wastes slots; uneven routing makes memory and the slowest expert grow.
#include <algorithm>
#include <array>
#include <cmath>

#include "bench/tune/lab_families.h"
#include "bench/tune/lab_surface.h"

namespace lockstep::bench {
namespace {

class FinalMoe final : public LabSurface {
 public:
  explicit FinalMoe(int instance) : LabSurface("final_moe", instance) {
    add_knob(choices_knob("expert_parallel", levels_of({1, 2, 4, 8, 16, 32, 64}), 3));
    add_knob(choices_knob("expert_tensor_parallel", levels_of({1, 2, 4})));
    add_knob(int_knob("capacity_percent", 100, 250, 125));
    add_knob(choices_knob("dispatcher", levels_of({"allgather", "alltoall", "hierarchical", "deepep"}), 1));
    add_knob(only_when(int_knob("deepep_sms", 4, 40, 20), "dispatcher == \"deepep\"", kDispatcher, {kDeepEp}));
    add_knob(int_knob("overlap_chunks", 1, 8, 1));
    add_knob(choices_knob("dispatch_dtype", levels_of({"bf16", "fp8"})));
    add_knob(choices_knob("grouped_gemm", levels_of({"loop", "cutlass", "triton"})));
    add_knob(choices_knob("micro_batch", levels_of({1, 2, 3, 4, 6, 8, 12, 16})));
    add_knob(choices_knob("recompute_experts", levels_bool(), 1));
    add_knob(choices_knob("balance", levels_of({"aux_loss", "bias", "sinkhorn"})));
    Draws random = draws(1);
    experts_ = 32 << random.below(3);
    node_ = 8;
    compute_ = random.log_uniform(2, 12);
    dense_ = random.uniform(0.5, 2.5);
    weights_ = random.log_uniform(20, 160);
    activation_ = random.log_uniform(1, 7);
    inside_ = random.log_uniform(0.3, 1.5);
    across_ = inside_ * random.uniform(3, 9);
    delay_ = random.log_uniform(0.05, 1.2);
    deepep_ = random.uniform(0.35, 0.75);
    skew_ = {random.uniform(0.15, 0.6), random.uniform(0.1, 0.5), random.uniform(0.05, 0.3)};
    balance_cost_ = {0, random.uniform(0, 0.01), random.uniform(0.02, 0.09)};
    gemm_ = {random.uniform(0.2, 1.1), random.uniform(0.04, 0.3), random.uniform(0.04, 0.3)};
    fp8_ = random.uniform(0.005, 0.06);
    reduce_ = random.log_uniform(0.3, 3);
    fit(random.uniform(0.25, 0.45), 0);
  }

 private:
  enum { kExpert, kTensor, kCapacity, kDispatcher, kSms, kChunks, kType, kGemm, kMicro, kRecompute, kBalance };
  enum { kAllGather, kAllToAll, kHierarchical, kDeepEp };

  // Tokens that an expert gets beyond its fair share; many experts on a rank even it out.
  double unevenness(PointView p) const {
    const double local = experts_ / number(p, kExpert);
    return skew_[static_cast<std::size_t>(level(p, kBalance))] * (0.3 + 0.7 / std::sqrt(local)) * 2;
  }

  double exchange_ms(PointView p) const {
    const double ranks = number(p, kExpert) * number(p, kTensor), micro = number(p, kMicro);
    if (ranks <= 1) return 0;
    const double outside = std::max(0.0, 1 - node_ / ranks);
    double bytes = micro * number(p, kCapacity) / 100 * (level(p, kType) == 1 ? 0.55 : 1);
    double ms = 0;
    switch (level(p, kDispatcher)) {
      case kAllGather:
        ms = bytes * (inside_ * 0.8 + across_ * outside) * std::sqrt(ranks) * 0.6 + delay_;
        break;
      case kAllToAll:
        ms = bytes * (inside_ + across_ * outside) + delay_ * (1 + 0.12 * ranks);
        break;
      case kHierarchical:
        ms = bytes * (inside_ * 1.7 + across_ * outside * 0.65) + delay_ * (2.2 + 0.02 * ranks);
        break;
      default: {
        const double sms = number(p, kSms);
        ms = bytes * (inside_ * 1.3 + across_ * outside * deepep_) * (0.6 + 8 / sms) + delay_ * 0.7;
      }
    }
    return 2 * ms + 0.04 * delay_ * number(p, kChunks);
  }

  Load load(PointView p) const override {
    const double expert = number(p, kExpert), tensor = number(p, kTensor), micro = number(p, kMicro);
    const int dispatcher = level(p, kDispatcher);
    if (expert > experts_ / 2.0)
      return {.refused = "AssertionError: number of experts must be a multiple of expert parallel size, two a rank"};
    if (dispatcher == kDeepEp && expert * tensor < 2) return {.refused = "RuntimeError: DeepEP: group of one rank"};
    if (dispatcher == kDeepEp && tensor > 1)
      return {.refused = "ValueError: DeepEP dispatcher does not support expert tensor parallelism"};
    if (dispatcher == kHierarchical && expert * tensor <= node_)
      return {.refused = "ValueError: hierarchical dispatch needs more than one node"};
    const double capacity = number(p, kCapacity) / 100, uneven = unevenness(p);
    const double dropped = 0.5 * uneven * std::exp(-2.2 * (capacity - 1) / uneven);
    const double local = experts_ / expert;
    const double slots = std::min(capacity, 1 + 1.6 * uneven);
    double gemm = compute_ * micro * slots / (1 - 0.08 * std::log2(tensor)) +
                  gemm_[static_cast<std::size_t>(level(p, kGemm))] * (1 + 0.22 * local);
    if (level(p, kGemm) == 0) gemm += 0.06 * local;
    gemm *= on(p, kRecompute) ? 1.3 : 1;
    if (level(p, kType) == 1) gemm *= 1 + fp8_ / std::sqrt(micro);
    const double exchange = exchange_ms(p);
    const double chunks = number(p, kChunks);
    // Chunks hide the exchange behind the experts, but make each product smaller.
    const double hidden = std::min(exchange, gemm) * (1 - 1 / chunks) * 0.9;
    gemm *= 1 + 0.025 * (chunks - 1);
    const double sms_taken = dispatcher == kDeepEp ? 1 + 0.0045 * number(p, kSms) : 1;
    double step = (dense_ * (micro + 0.6) + gemm) * sms_taken + exchange - hidden;
    step *= 1 + balance_cost_[static_cast<std::size_t>(level(p, kBalance))];
    // Weights that are replicated outside the group are reduced once per micro-batch's share of the step.
    step += reduce_ * local * tensor / (tensor * 16) * 1.2;
    const double device =
        weights_ / (expert * tensor) +
        activation_ * micro * (on(p, kRecompute) ? 0.35 : 1) * (0.5 + 0.5 * capacity * (1 + 0.5 * uneven)) +
        0.12 * micro * capacity * (dispatcher == kAllGather ? expert * 0.5 : 1) + 4;
    return {.step_seconds = step / (micro * (1 - std::min(0.5, dropped))), .wall_seconds = step, .device = device};
  }

  int experts_;
  double node_, compute_, dense_, weights_, activation_, inside_, across_, delay_, deepep_, fp8_, reduce_;
  std::array<double, 3> skew_{}, balance_cost_{}, gemm_{};
};

}  // namespace

std::unique_ptr<Surface> make_final_moe(int instance) { return std::make_unique<FinalMoe>(instance); }

}  // namespace lockstep::bench
