#include "lockstep/engine/fused/options.h"

#include <algorithm>
#include <numbers>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/kernels/cuda/rope.h"
#include "lockstep/plan/executor.h"

namespace lockstep::engine::cuda {
namespace {
void need(bool condition, const std::string& problem) {
  if (!condition)
    throw UserError(ExitCode::kAnswerIsNo, "the fused CUDA step cannot run this model: " + problem,
                    "train it with the general engine");
}
}  // namespace

FusedShape fused_shape(const spec::Model& model, const FusedOptions& options) {
  const bool fp8 = options.precision == LinearPrecision::kFp8;
  const auto problem = plan::why_model_is_not_fused(model, fp8 ? spec::Precision::kFp8 : spec::Precision::kBf16);
  need(!problem, problem.value_or(""));
  FusedShape s{};
  s.layers = model.layers;
  s.hidden = model.hidden;
  s.heads = model.heads;
  s.kv_heads = model.kv_heads > 0 ? model.kv_heads : model.heads;
  s.head_dim = model.head_dim > 0 ? model.head_dim : model.hidden / model.heads;
  s.ffn = model.ffn_hidden;
  s.vocab = model.vocab;
  s.batch = options.micro_batch;
  s.seq = options.sequence_length > 0 ? options.sequence_length : model.max_sequence;
  s.norm_epsilon = model.norm_epsilon;
  s.rope_theta = model.rope_theta;
  s.rope_scaling = model.rope_scaling;
  s.tied = model.tied_embeddings;
  const std::int64_t unit = fp8 ? plan::fused::kSizeUnitFp8 : plan::fused::kSizeUnit;
  need(s.rows() > 0 && s.rows() % unit == 0, "its rows are not a multiple of " + std::to_string(unit));
  need(options.accumulation >= 1, "accumulation is below 1");
  return s;
}

// Hugging Face's rope_scaling: "linear" divides all frequencies, "llama3" the low ones, with a smooth passage between.
std::vector<float> rope_frequencies(const FusedShape& shape) {
  std::vector<float> frequencies = kernels::cuda::rope_frequencies(shape.head_dim, shape.rope_theta);
  const spec::RopeScaling& scaling = shape.rope_scaling;
  if (scaling.kind == spec::RopeScaling::Kind::kNone) return frequencies;
  for (float& frequency : frequencies) {
    const double f = frequency;
    double kept = 0;  // share of the frequency that stays
    if (scaling.kind == spec::RopeScaling::Kind::kLlama3) {
      const double turns = f * static_cast<double>(scaling.original_max_sequence) / (2 * std::numbers::pi);
      kept = std::clamp((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor), 0.0,
                        1.0);
    }
    frequency = static_cast<float>((1 - kept) * f / scaling.factor + kept * f);
  }
  return frequencies;
}

}  // namespace lockstep::engine::cuda
