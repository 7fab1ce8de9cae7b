// The fused step of one GPU inside the Pricer: layouts of one rank, where the profile was measured with it.
#include "lockstep/cost/fused/memory.h"
#include "lockstep/cost/pricer/state.h"

namespace lockstep::cost {

void Pricer::State::set_fused(const Profile& profile) {
  dense.reset();
  const bool whole = fitted.facts.trained_share == 1;  // adapters train through the general path
  is_dense_model = whole && !fused_problem(model);
  if (!profile.dense || !is_dense_model || cluster.groups.size() != 1) return;
  dense = FusedPricing{.constants = profile.dense->constants,
                       .time_sigma = profile.dense->time_sigma,
                       .memory_sigma = profile.dense->memory_sigma,
                       .model = fused_run(model),
                       .device = cluster.groups.front().device,
                       .fp8 = !fused_problem(model, spec::Precision::kFp8)};
}

ParameterBytes Pricer::State::bytes_of(const plan::Layout& layout) const {
  const bool narrow =
      options.state_precision == spec::Precision::kBf16 && is_dense_model && is_fused_layout(layout, options.optimizer);
  return parameter_bytes(layout.precision, options.optimizer, fitted.facts, narrow);
}

bool Pricer::State::is_fused(const plan::Layout& layout) const {
  return dense && is_fused_layout(layout, options.optimizer) &&
         (dense->fp8 || layout.precision != spec::Precision::kFp8);
}

bool Pricer::State::is_fused(const plan::Layout& layout, const plan::BatchPlan& batch) const {
  if (!is_fused(layout)) return false;
  return (batch.micro * sequence) % fused_row_unit(layout.precision) == 0;
}

FusedRun Pricer::State::fused_run_of(const plan::Layout& layout, const plan::BatchPlan& batch) const {
  FusedRun run = dense->model;
  run.micro = static_cast<double>(batch.micro);
  run.accumulation = static_cast<double>(batch.accumulation);
  run.sequence = static_cast<double>(sequence);
  run.recompute = layout.recompute;
  run.fp8 = layout.precision == spec::Precision::kFp8;
  run.gradient_norm = options.gradient_norm;
  run.bf16_states = options.state_precision == spec::Precision::kBf16;
  return run;
}

Price Pricer::State::price_fused(const plan::Layout& layout, const plan::BatchPlan& batch) const {
  const FusedRun run = fused_run_of(layout, batch);
  const FusedSeconds seconds = fused_seconds(run, dense->constants, dense->device);
  Price price;
  price.time.compute = seconds.forward + seconds.backward;
  price.time.optimizer = seconds.optimizer;
  price.memory = fused_memory(run);
  price.memory.overhead = context_bytes;
  price.memory.capacity = dense->device.memory_bytes;
  price.time_sigma = dense->time_sigma;
  price.memory_sigma = dense->memory_sigma;
  price.fused = true;
  return price;
}

StagePrice Pricer::State::fused_stage(const plan::Layout& layout, const plan::BatchPlan& batch) const {
  const FusedSeconds seconds = fused_seconds(fused_run_of(layout, batch), dense->constants, dense->device);
  StagePrice stage;
  stage.forward_seconds = seconds.forward / static_cast<double>(batch.accumulation);
  stage.backward_seconds = seconds.backward / static_cast<double>(batch.accumulation);
  stage.weight_gradient_seconds = seconds.weight_gradient / static_cast<double>(batch.accumulation);
  stage.layers = model.layers;
  stage.in_flight = 1;
  stage.device = dense->device.kind;
  stage.memory = price_fused(layout, batch).memory;
  return stage;
}

}  // namespace lockstep::cost
