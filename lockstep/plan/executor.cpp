#include "lockstep/plan/executor.h"

#include <fmt/format.h>

#include "lockstep/plan/fused_limits.h"
#include "lockstep/plan/run.h"

namespace lockstep::plan {
namespace {

std::int64_t size_unit(spec::Precision precision) {
  return precision == spec::Precision::kFp8 ? fused::kSizeUnitFp8 : fused::kSizeUnit;
}

std::string no_multiple(std::int64_t unit) { return fmt::format("a size is not a multiple of {}", unit); }

std::optional<std::string> find_shape_problem(const spec::Model& model, std::int64_t unit) {
  const std::int64_t kv_heads = model.kv_heads > 0 ? model.kv_heads : model.heads;
  if (model.heads <= 0 || kv_heads <= 0 || model.heads % kv_heads != 0) {
    return "its heads do not divide by those of keys and values";
  }
  const std::int64_t head_dim = model.head_dim > 0 ? model.head_dim : model.hidden / model.heads;
  const std::int64_t attention = model.heads * head_dim;
  for (const std::int64_t size :
       {model.hidden, attention + 2 * kv_heads * head_dim, attention, model.ffn_hidden, model.vocab}) {
    if (size <= 0 || size % unit != 0) return no_multiple(unit);
  }
  if (head_dim % fused::kSizeUnit != 0) return no_multiple(fused::kSizeUnit);
  if (head_dim > fused::kLargestHead) return fmt::format("its heads are wider than {}", fused::kLargestHead);
  if (model.hidden > fused::kLargestHidden) {
    return fmt::format("its hidden size is above {}", fused::kLargestHidden);
  }
  return std::nullopt;
}

}  // namespace

const char* to_string(Executor executor) { return executor == Executor::kFused ? "fused" : "sharded"; }

std::optional<std::string> why_model_is_not_fused(const spec::Model& model, spec::Precision precision) {
  if (model.arch != spec::Arch::kLlama || model.experts > 0) return "the model is not a dense Llama";
  if (model.classes > 0) return "the model ends in a classifier";
  if (model.dropout > 0) return "the model has dropout";
  if (const std::string beyond = spec::beyond_llama(model); !beyond.empty()) {
    return fmt::format("the model is no plain Llama: {}", beyond);
  }
  return find_shape_problem(model, size_unit(precision));
}

std::optional<std::string> why_not_fused(const Run& run) {
  const Layout& layout = run.layout;
  if (run.cluster.is_cpu()) return "the device is not a GPU";
  if (layout.world() != 1) return fmt::format("the layout has {} ranks", layout.world());
  if (auto problem = why_model_is_not_fused(run.model, layout.precision)) return problem;
  if (run.lora.rank > 0) return "the job trains LoRA adapters";
  if (run.optimizer.kind != spec::OptimizerKind::kAdamW) return "the optimizer is not AdamW";
  if (layout.precision != spec::Precision::kBf16 && layout.precision != spec::Precision::kFp8) {
    return fmt::format("the precision is {}", spec::to_string(layout.precision));
  }
  if (layout.offload != Offload::kNone || run.activation_offload) return "the job offloads to host memory";
  if (run.communication.compression != spec::Compression::kNone) return "the job compresses gradients";
  if (run.packing == spec::Packing::kDocuments) return "attention stays within documents (data.packing)";
  if (run.health.judges_updates()) return "the job judges an update before it is made (health)";
  const std::int64_t unit = size_unit(layout.precision);
  if (run.batch.micro * run.batch.sequence_length % unit != 0) return no_multiple(unit);
  return std::nullopt;
}

Executor choose_executor(const Run& run) { return why_not_fused(run) ? Executor::kSharded : Executor::kFused; }

}  // namespace lockstep::plan
