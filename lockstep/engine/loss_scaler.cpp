#include "lockstep/engine/loss_scaler.h"

#include <cmath>

#include "lockstep/base/error.h"

namespace lockstep::engine {
namespace {

const char* const kName = "loss_scaler.state";

}  // namespace

LossScaler::LossScaler(const LossScalerOptions& options)
    : options_(options), scale_(options.enabled ? options.initial_scale : 1.0) {
  LOCKSTEP_ASSERT(options.initial_scale > 0.0 && options.growth_factor > 1.0, "loss scaler: scale and growth");
  LOCKSTEP_ASSERT(options.backoff_factor > 0.0 && options.backoff_factor < 1.0, "loss scaler: backoff");
  LOCKSTEP_ASSERT(options.growth_interval >= 1, "loss scaler: growth interval");
}

void LossScaler::update(bool gradient_finite) {
  if (!gradient_finite) ++skipped_;
  if (!options_.enabled) return;
  if (!gradient_finite) {
    scale_ *= options_.backoff_factor;
    good_steps_ = 0;
    return;
  }
  if (++good_steps_ < options_.growth_interval) return;
  good_steps_ = 0;
  const double grown = scale_ * options_.growth_factor;
  if (std::isfinite(static_cast<float>(grown))) scale_ = grown;  // the scale multiplies fp32 losses
}

parallel::TensorMap LossScaler::state() const {
  return {{kName, torch::tensor({scale_, static_cast<double>(good_steps_), static_cast<double>(skipped_)},
                                torch::TensorOptions().dtype(torch::kFloat64))}};
}

void LossScaler::load_state(const parallel::TensorMap& state) {
  const auto found = state.find(kName);
  if (found == state.end() || found->second.scalar_type() != torch::kFloat64 || found->second.numel() != 3) {
    throw bad_input(std::string("tensor ") + kName + " is missing or malformed", "use a checkpoint of the same job");
  }
  const torch::Tensor values = found->second.contiguous().view({3});
  const double scale = values[0].item<double>();
  const double good = values[1].item<double>();
  const double skipped = values[2].item<double>();
  constexpr double kMostSteps = 9e15;  // whole numbers up to here are exact in fp64
  if (!(scale > 0.0) || !std::isfinite(scale) || !(good >= 0.0 && good < kMostSteps) ||
      !(skipped >= 0.0 && skipped < kMostSteps)) {
    throw bad_input(std::string("tensor ") + kName + " holds impossible values", "use an undamaged checkpoint");
  }
  if (options_.enabled) scale_ = scale;
  good_steps_ = static_cast<std::int64_t>(good);
  skipped_ = static_cast<std::int64_t>(skipped);
}

}  // namespace lockstep::engine
