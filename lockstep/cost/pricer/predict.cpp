// A price as a user reads it: intervals, throughput, MFU.
#include <algorithm>
#include <cmath>

#include "lockstep/cost/flops.h"
#include "lockstep/cost/pricer/state.h"
#include "lockstep/cost/step_time.h"

namespace lockstep::cost {

// How much faster compute could be at most: products at their ceiling. Of a machine that measured itself, at the peak.
double Pricer::State::headroom(const plan::Layout& layout) const {
  const auto precision = static_cast<std::size_t>(layout.precision);
  double least = 1;
  for (std::size_t i = 0; i <= group_of(layout.world() - 1); ++i) {
    const GroupRates& group = groups[i];
    const double ceiling = is_published ? group.ceiling[precision] : 0;
    least =
        std::min(least, ceiling > 0 ? group.rates[precision].gemm.value() / ceiling : group.constants.gemm_efficiency);
  }
  return least;
}

// No interval reaches beyond this: the counted compute with products at their ceiling, and the model's own FLOPs there.
double Pricer::fastest_seconds(const Price& price, const plan::Layout& layout, const plan::BatchPlan& batch) const {
  const State& state = *state_;
  const double counted = price.time.compute * state.headroom(layout);
  if (!state.model.is_language_model() || !state.is_published) return counted;
  const double rate = state.sum_over_ranks(
      layout, [&](const GroupRates& group) { return group.ceiling[static_cast<std::size_t>(layout.precision)]; });
  const double tokens = static_cast<double>(batch.global_sequences) * static_cast<double>(state.sequence);
  return rate > 0 ? std::max(counted, tokens * mfu_flops_per_token(state.model, state.sequence) / rate) : counted;
}

plan::Prediction Pricer::predict(const Price& price, const plan::Layout& layout, const plan::BatchPlan& batch) const {
  const double expected = price.step_seconds();
  const double width = std::exp(kNinetyPercent * price.time_sigma);
  plan::Prediction prediction;
  const double low = std::max(expected / width, std::min(expected, fastest_seconds(price, layout, batch)));
  prediction.step_seconds = {low, expected, expected * width};
  const double samples = static_cast<double>(batch.global_sequences);
  const auto rate = [&](double amount) {
    return plan::Interval{amount / (expected * width), amount / expected, amount / low};
  };
  prediction.samples_per_second = rate(samples);
  if (state_->model.is_language_model()) {
    const double tokens = samples * static_cast<double>(state_->sequence);
    prediction.tokens_per_second = rate(tokens);
    const double peak = state_->sum_over_ranks(layout, [](const GroupRates& group) { return group.peak_bf16; });
    if (peak > 0) {
      const double flops = mfu_flops_per_token(state_->model, state_->sequence);
      const plan::Interval& tokens_rate = prediction.tokens_per_second;
      prediction.mfu = {tokens_rate.low * flops / peak, tokens_rate.expected * flops / peak,
                        tokens_rate.high * flops / peak};
    }
  }
  return prediction;
}

}  // namespace lockstep::cost
