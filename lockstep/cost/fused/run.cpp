#include "lockstep/cost/fused/run.h"

#include <fmt/format.h>

#include <cmath>

namespace lockstep::cost {
namespace {

constexpr std::int64_t kUnit = 16, kUnitFp8 = 64;  // sizes are multiples of it
constexpr std::int64_t kLargestHidden = 8192;
constexpr std::int64_t kLargestHead = 128;

}  // namespace

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

std::int64_t fused_row_unit(spec::Precision precision) { return precision == spec::Precision::kFp8 ? kUnitFp8 : kUnit; }

std::optional<std::string> fused_problem(const spec::Model& model, spec::Precision precision) {
  if (model.arch != spec::Arch::kLlama || model.experts > 0) return "the model is no dense Llama";
  if (model.classes > 0) return "the model ends in a classifier";
  if (model.dropout > 0) return "the model has dropout";
  const FusedRun run = fused_run(model);
  const std::int64_t unit = fused_row_unit(precision);
  for (const double size : {run.hidden, run.qkv_width(), run.attention_width(), run.ffn, run.vocab}) {
    if (size <= 0 || std::fmod(size, unit) != 0) return fmt::format("a size is not a multiple of {}", unit);
  }
  if (run.head_dim <= 0 || std::fmod(run.head_dim, kUnit) != 0) {
    return fmt::format("a size is not a multiple of {}", kUnit);
  }
  if (run.head_dim > kLargestHead) return fmt::format("its heads are wider than {}", kLargestHead);
  if (std::fmod(run.heads, run.kv_heads) != 0) return "its heads do not divide by those of keys and values";
  if (model.hidden > kLargestHidden) return fmt::format("its hidden size is above {}", kLargestHidden);
  return std::nullopt;
}

std::optional<std::string> fused_problem(const spec::Model& model, const plan::Layout& layout,
                                         spec::OptimizerKind optimizer, bool adapters) {
  if (layout.world() != 1) return fmt::format("the layout has {} ranks", layout.world());
  if (auto problem = fused_problem(model, layout.precision)) return problem;
  if (adapters) return "the job trains LoRA adapters";
  if (optimizer != spec::OptimizerKind::kAdamW) return "the optimizer is not AdamW";
  if (layout.precision != spec::Precision::kBf16 && layout.precision != spec::Precision::kFp8) {
    return fmt::format("the precision is {}", spec::to_string(layout.precision));
  }
  if (layout.offload != plan::Offload::kNone) return "the job offloads to host memory";
  return std::nullopt;
}

std::string fp8_refusal(const std::string& why) {
  return "precision fp8 is trained by the fused CUDA step alone: " + why;
}

std::string narrow_states_refusal(const std::string& why) {
  return "optimizer.state_precision bf16 is the fused CUDA step's alone: " + why;
}

bool is_fused_layout(const plan::Layout& layout, spec::OptimizerKind optimizer) {
  const bool precision = layout.precision == spec::Precision::kBf16 || layout.precision == spec::Precision::kFp8;
  return layout.world() == 1 && precision && optimizer == spec::OptimizerKind::kAdamW &&
         layout.offload == plan::Offload::kNone;
}

}  // namespace lockstep::cost
