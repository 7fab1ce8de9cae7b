// What is kept for backward follows Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
// Models", section 4.1, without the score matrix (attention keeps none) and without dropout masks (they are drawn
// again).
#include "lockstep/cost/operators.h"

namespace lockstep::cost {
namespace {

Operator causal_attention(std::int64_t layers, const spec::Model& model, std::int64_t samples, std::int64_t sequence) {
  Operator op;
  op.name = "attention";
  op.kind = OperatorKind::kAttention;
  op.count = layers;
  op.heads = samples * model.heads;
  op.sequence = sequence;
  op.head_dim = model.head_dim;
  op.causal = true;
  // q, k, v and the logarithm of each row's sum; the output is kept by the projection that follows.
  op.saved_elements = samples * sequence * ((model.heads + 2 * model.kv_heads) * model.head_dim + model.heads);
  return op;
}

// Of layers that see all keys, and of those with a window.
void append_attention(std::vector<Operator>& list, const spec::Model& model, std::int64_t samples,
                      std::int64_t sequence) {
  std::int64_t windowed = 0;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) windowed += spec::window_of(model, layer) > 0 ? 1 : 0;
  if (windowed < model.layers) list.push_back(causal_attention(model.layers - windowed, model, samples, sequence));
  if (windowed == 0) return;
  list.push_back(causal_attention(windowed, model, samples, sequence));
  list.back().name = "window_attention";
  list.back().window = model.decoder.sliding_window;
}

// The MLP of Llama's relatives: gate and up read the same input, kept once.
void append_mlp(std::vector<Operator>& list, const spec::Model& model, std::int64_t tokens) {
  const std::int64_t width = tokens * model.hidden, inner = tokens * model.ffn_hidden, layers = model.layers;
  const bool silu = model.activation == spec::Activation::kSilu;
  if (model.decoder.gated_mlp) {
    list.push_back(matmul("mlp_gate", layers, tokens, model.ffn_hidden, model.hidden, width));
    list.push_back(matmul("mlp_up", layers, tokens, model.ffn_hidden, model.hidden, 0));
    list.push_back(pointwise(silu ? "swiglu" : "geglu", silu ? PointwiseKernel::kSilu : PointwiseKernel::kGelu, layers,
                             inner, 2 * inner));
  } else {
    list.push_back(matmul("mlp_up", layers, tokens, model.ffn_hidden, model.hidden, width));
    list.push_back(pointwise("gelu", PointwiseKernel::kGelu, layers, inner, inner));
  }
  list.push_back(matmul("mlp_down", layers, tokens, model.hidden, model.ffn_hidden, inner));
}

// Norms of a layer, those of queries and keys aside.
std::int64_t norms_of_layer(const spec::Decoder& decoder) {
  if (decoder.norm_place == spec::NormPlace::kBoth) return 4;
  return decoder.parallel_block == spec::ParallelBlock::kOneNorm ? 1 : 2;
}

// The head and its loss: logits exist a few rows at a time, what is kept is the gradient of the head's input.
void append_head(std::vector<Operator>& list, const spec::Model& model, std::int64_t samples, std::int64_t tokens) {
  if (model.classes > 0) {  // a classifier on one token of each sample
    list.push_back(matmul("classifier", 1, samples, model.classes, model.hidden, samples * model.hidden));
    list.push_back(pointwise("cross_entropy", PointwiseKernel::kCrossEntropy, 1, samples * model.classes, 0));
    return;
  }
  Operator head = matmul("lm_head", 1, tokens, model.vocab, model.hidden, tokens * model.hidden);
  Operator loss = pointwise("cross_entropy", PointwiseKernel::kCrossEntropy, 1, tokens * model.vocab, 0);
  head.chunked = loss.chunked = true;
  list.push_back(head);
  list.push_back(loss);
}

}  // namespace

Operator matmul(const char* name, std::int64_t count, std::int64_t m, std::int64_t n, std::int64_t k,
                std::int64_t saved) {
  Operator op;
  op.name = name;
  op.kind = OperatorKind::kMatmul;
  op.count = count;
  op.m = m;
  op.n = n;
  op.k = k;
  op.saved_elements = saved;
  return op;
}

Operator pointwise(const char* name, PointwiseKernel kernel, std::int64_t count, std::int64_t elements,
                   std::int64_t saved) {
  Operator op;
  op.name = name;
  op.kind = OperatorKind::kPointwise;
  op.count = count;
  op.kernel = kernel;
  op.elements = elements;
  op.saved_elements = saved;
  return op;
}

std::vector<Operator> gpt_operators(const spec::Model& model, std::int64_t samples, std::int64_t sequence) {
  const std::int64_t tokens = samples * sequence;
  const std::int64_t width = tokens * model.hidden;      // [tokens, hidden]
  const std::int64_t inner = tokens * model.ffn_hidden;  // [tokens, ffn_hidden]
  const std::int64_t heads_width = model.heads * model.head_dim;
  const std::int64_t qkv_width = (model.heads + 2 * model.kv_heads) * model.head_dim;
  const std::int64_t layers = model.layers;

  std::vector<Operator> list;
  list.push_back(pointwise("token_embedding", PointwiseKernel::kEmbedding, 1, width, 0));
  list.push_back(pointwise("position_embedding", PointwiseKernel::kEmbedding, 1, width, 0));
  if (model.dropout > 0) list.push_back(pointwise("dropout", PointwiseKernel::kDropout, 1 + 2 * layers, width, 0));
  list.push_back(pointwise("norm", PointwiseKernel::kLayerNorm, 2 * layers + 1, width, width));
  list.push_back(matmul("qkv", layers, tokens, qkv_width, model.hidden, width));
  list.push_back(causal_attention(layers, model, samples, sequence));
  list.push_back(matmul("attention_output", layers, tokens, model.hidden, heads_width, tokens * heads_width));
  list.push_back(pointwise("residual_add", PointwiseKernel::kResidualAdd, 2 * layers, width, 0));
  list.push_back(matmul("mlp_up", layers, tokens, model.ffn_hidden, model.hidden, width));
  list.push_back(pointwise("gelu", PointwiseKernel::kGelu, layers, inner, inner));
  // Without dropout the MLP is one node that draws gelu's output again from its input instead of keeping it.
  const bool fused = model.dropout == 0 && model.activation == spec::Activation::kGeluTanh;
  list.push_back(matmul("mlp_down", layers, tokens, model.hidden, model.ffn_hidden, fused ? 0 : inner));
  append_head(list, model, samples, tokens);
  return list;
}

std::vector<Operator> llama_operators(const spec::Model& model, std::int64_t samples, std::int64_t sequence) {
  const std::int64_t tokens = samples * sequence;
  const std::int64_t width = tokens * model.hidden;
  const std::int64_t heads_width = model.heads * model.head_dim;
  const std::int64_t kv_width = model.kv_heads * model.head_dim;
  const std::int64_t layers = model.layers;
  const bool rms = model.decoder.norm == spec::NormKind::kRms;
  const std::int64_t rotated = tokens * (heads_width + kv_width) * spec::rotary_dim(model) / model.head_dim;

  std::vector<Operator> list;
  list.push_back(pointwise("token_embedding", PointwiseKernel::kEmbedding, 1, width, 0));
  list.push_back(pointwise("norm", rms ? PointwiseKernel::kRmsNorm : PointwiseKernel::kLayerNorm,
                           norms_of_layer(model.decoder) * layers + 1, width, width));
  if (model.decoder.qk_norm != spec::QkNorm::kNone) {
    const std::int64_t both = tokens * (heads_width + kv_width);
    list.push_back(pointwise("qk_norm", PointwiseKernel::kRmsNorm, layers, both, both));
  }
  // Query, key and value read the same normalised input, kept once.
  list.push_back(matmul("query", layers, tokens, heads_width, model.hidden, width));
  list.push_back(matmul("key_value", 2 * layers, tokens, kv_width, model.hidden, 0));
  list.push_back(pointwise("rotary", PointwiseKernel::kRotary, layers, rotated, 0));
  append_attention(list, model, samples, sequence);
  list.push_back(matmul("attention_output", layers, tokens, model.hidden, heads_width, tokens * heads_width));
  list.push_back(pointwise("residual_add", PointwiseKernel::kResidualAdd, 2 * layers, width, 0));
  append_mlp(list, model, tokens);
  append_head(list, model, samples, tokens);
  return list;
}

}  // namespace lockstep::cost
