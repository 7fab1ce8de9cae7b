#include "lockstep/engine/cuda/dense_options.h"

#include <string>

#include "lockstep/base/error.h"

namespace lockstep::engine::cuda {
namespace {
void need(bool condition, const std::string& problem) {
  if (!condition)
    throw UserError(ExitCode::kAnswerIsNo, "the fused CUDA step cannot run this model: " + problem,
                    "train it with the general engine");
}
}  // namespace

DenseShape dense_shape(const spec::Model& model, const DenseOptions& options) {
  need(model.arch == spec::Arch::kLlama, "its arch is not llama");
  need(model.dropout == 0, "it has dropout");
  need(!model.tied_embeddings, "its embeddings are tied");
  need(model.rope_scaling.kind == spec::RopeScaling::Kind::kNone, "its rotary positions are stretched");
  need(model.classes == 0, "it has a classifier");
  DenseShape s{};
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
  const std::int64_t unit = options.precision == LinearPrecision::kFp8 ? 64 : 16;
  for (const std::int64_t size : {s.hidden, s.qkv_width(), s.attention_width(), s.ffn, s.vocab, s.rows()})
    need(size > 0 && size % unit == 0, "a size is not a multiple of " + std::to_string(unit));
  need(s.head_dim % 16 == 0 && s.head_dim <= 128, "its head dimension is not a multiple of 16 up to 128");
  need(s.hidden <= 8192, "its hidden size is above 8192");
  need(options.accumulation >= 1, "accumulation is below 1");
  return s;
}

}  // namespace lockstep::engine::cuda
