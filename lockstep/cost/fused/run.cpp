#include "lockstep/cost/fused/run.h"

namespace lockstep::cost {

FusedRun fused_run(const spec::Model& model) {
  FusedRun run;
  run.layers = static_cast<double>(model.layers);
  run.hidden = static_cast<double>(model.hidden);
  run.heads = static_cast<double>(model.heads);
  run.kv_heads = static_cast<double>(model.kv_heads > 0 ? model.kv_heads : model.heads);
  run.head_dim = model.head_dim > 0 ? static_cast<double>(model.head_dim) : run.hidden / run.heads;
  run.ffn = static_cast<double>(model.ffn_hidden);
  run.vocab = static_cast<double>(model.vocab);
  run.sequence = static_cast<double>(model.max_sequence);
  run.tied = model.tied_embeddings;
  return run;
}

FusedRun fused_run(const spec::Model& model, const plan::Layout& layout, const plan::BatchPlan& batch) {
  FusedRun run = fused_run(model);
  run.micro = static_cast<double>(batch.micro);
  run.accumulation = static_cast<double>(batch.accumulation);
  if (batch.sequence_length > 0) run.sequence = static_cast<double>(batch.sequence_length);
  run.recompute = layout.recompute;
  run.fp8 = layout.precision == spec::Precision::kFp8;
  return run;
}

}  // namespace lockstep::cost
