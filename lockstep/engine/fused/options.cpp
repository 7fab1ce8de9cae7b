#include "lockstep/engine/fused/options.h"

#include <algorithm>
#include <numbers>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/kernels/cuda/rope.h"

namespace lockstep::engine::cuda {
namespace {
void need(bool condition, const std::string& problem) {
  if (!condition)
    throw UserError(ExitCode::kAnswerIsNo, "the fused CUDA step cannot run this model: " + problem,
                    "train it with the general engine");
}
}  // namespace

FusedShape fused_shape(const spec::Model& model, const FusedOptions& options) {
  need(model.arch == spec::Arch::kLlama, "its arch is not llama");
  need(model.dropout == 0, "it has dropout");
  need(model.classes == 0, "it has a classifier");
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
  const std::int64_t unit = options.precision == LinearPrecision::kFp8 ? 64 : 16;
  for (const std::int64_t size : {s.hidden, s.qkv_width(), s.attention_width(), s.ffn, s.vocab, s.rows()})
    need(size > 0 && size % unit == 0, "a size is not a multiple of " + std::to_string(unit));
  need(s.head_dim % 16 == 0 && s.head_dim <= 128, "its head dimension is not a multiple of 16 up to 128");
  need(s.hidden <= 8192, "its hidden size is above 8192");
  need(s.heads % s.kv_heads == 0, "its heads do not divide by those of keys and values");
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
