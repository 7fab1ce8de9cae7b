// The fused step of one GPU inside the Pricer: layouts of one rank, where the profile was measured with it.
#include "lockstep/cost/fused/memory.h"
#include "lockstep/cost/pricer/state.h"
#include "lockstep/plan/fused_limits.h"

namespace lockstep::cost {

void Pricer::State::set_fused(const Profile& profile, plan::Run run) {
  run.layout = {};
  run.batch = {};
  const bool whole = fitted.facts.trained_share == 1 && cluster.groups.size() == 1;
  run.layout.precision = spec::Precision::kBf16;
  fused_bf16 = whole && !plan::why_not_fused(run);
  run.layout.precision = spec::Precision::kFp8;
  fused_fp8 = whole && !plan::why_not_fused(run);
  fused_pricing.reset();
  if (!profile.dense) return;
  fused_pricing = FusedPricing{profile.dense->constants, profile.dense->time_sigma, profile.dense->memory_sigma};
}

ParameterBytes Pricer::State::bytes_of(const plan::Layout& layout) const {
  const bool narrow = options.state_precision == spec::Precision::kBf16 && runs_fused(layout);
  return parameter_bytes(layout.precision, options.optimizer, fitted.facts, narrow);
}

// plan::why_not_fused(), as far as it depends on layout and batch: this is asked a million times a second.
bool Pricer::State::runs_fused(const plan::Layout& layout) const {
  if (layout.world() != 1 || layout.offload != plan::Offload::kNone) return false;
  return layout.precision == spec::Precision::kFp8 ? fused_fp8
                                                   : layout.precision == spec::Precision::kBf16 && fused_bf16;
}

bool Pricer::State::runs_fused(const plan::Layout& layout, const plan::BatchPlan& batch) const {
  using plan::fused::kSizeUnit, plan::fused::kSizeUnitFp8;
  const std::int64_t unit = layout.precision == spec::Precision::kFp8 ? kSizeUnitFp8 : kSizeUnit;
  return runs_fused(layout) && (batch.micro * sequence) % unit == 0;
}

FusedRun Pricer::State::fused_run_of(const plan::Layout& layout, const plan::BatchPlan& batch) const {
  FusedRun run = fused_run(model, layout, batch);
  run.sequence = static_cast<double>(sequence);
  run.gradient_norm = options.gradient_norm;
  run.bf16_states = options.state_precision == spec::Precision::kBf16;
  return run;
}

Price Pricer::State::price_fused(const plan::Layout& layout, const plan::BatchPlan& batch) const {
  const FusedRun run = fused_run_of(layout, batch);
  const FusedSeconds seconds = fused_seconds(run, fused_pricing->constants, cluster.groups.front().device);
  Price price;
  price.time.compute = seconds.forward + seconds.backward;
  price.time.optimizer = seconds.optimizer;
  price.memory = fused_memory(run);
  price.memory.overhead = context_bytes;
  price.memory.capacity = cluster.groups.front().device.memory_bytes;
  price.time_sigma = fused_pricing->time_sigma;
  price.memory_sigma = fused_pricing->memory_sigma;
  price.fused = true;
  return price;
}

StagePrice Pricer::State::fused_stage(const plan::Layout& layout, const plan::BatchPlan& batch) const {
  const FusedSeconds seconds =
      fused_seconds(fused_run_of(layout, batch), fused_pricing->constants, cluster.groups.front().device);
  StagePrice stage;
  stage.forward_seconds = seconds.forward / static_cast<double>(batch.accumulation);
  stage.backward_seconds = seconds.backward / static_cast<double>(batch.accumulation);
  stage.weight_gradient_seconds = seconds.weight_gradient / static_cast<double>(batch.accumulation);
  stage.layers = model.layers;
  stage.in_flight = 1;
  stage.device = cluster.groups.front().device.kind;
  stage.memory = price_fused(layout, batch).memory;
  return stage;
}

}  // namespace lockstep::cost
