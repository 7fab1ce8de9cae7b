#include "lockstep/nn/decoder_attention.h"

#include <cmath>

#include "lockstep/nn/collectives.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;

// RMSNorm over the heads of all tensor-parallel ranks, [batch, rows, own heads x head_dim]; `width` elements in all.
// Heads that `sharers` ranks hold count once, and so does what their gradients add up to.
Tensor norm_over_ranks(const Tensor& x, const Norm& norm, std::int64_t width, std::int64_t sharers,
                       const comm::Communicator& tp) {
  const auto wide = x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  const Tensor values = x.to(wide);
  const Tensor own = values.square().sum({-1}, /*keepdim=*/true) / static_cast<double>(sharers);
  const Tensor mean = sum_inside_region(own, tp, "tp: norm of queries and keys") / static_cast<double>(width);
  return (values * at::rsqrt(mean + norm.epsilon()) * norm.scale().to(wide)).to(x.scalar_type());
}

Segment elements_of(const Segment& heads, std::int64_t dim) { return {heads.first * dim, heads.count * dim}; }

// The queries' norm or the keys'. Over one head it serves all heads of all ranks, and each rank's gradient is a part.
std::shared_ptr<Norm> make_norm(const DecoderBuild& build, std::int64_t heads, const Segment& own,
                                std::int64_t sharers) {
  const Norm::Settings settings{.plus_one = build.spec.decoder.norm_plus_one, .epsilon = build.spec.norm_epsilon};
  const std::int64_t dim = build.head_dim(), tp = build.partition.tp_size();
  if (build.spec.decoder.qk_norm == spec::QkNorm::kHead) {
    return std::make_shared<Norm>(dim, settings, build.options, Sharing{tp, tp > 1});
  }
  return std::make_shared<Norm>(heads * dim, settings, build.options, Sharing{sharers, sharers > 1},
                                std::vector<Segment>{elements_of(own, dim)});
}

}  // namespace

std::shared_ptr<Linear> DecoderBuild::dense(std::int64_t in, std::int64_t out, bool bias, const LinearCut& cut) const {
  return std::make_shared<Linear>(in, out, bias, WeightLayout::kOutIn, Init{Init::Kind::kNormal, spec.init_std},
                                  options, cut);
}

LinearCut DecoderBuild::by_outputs(const Segment& segment, std::int64_t sharers) {
  return {.kind = LinearCut::Kind::kOutputs, .segments = {segment}, .weight = {sharers, /*partial=*/sharers > 1}};
}

LinearCut DecoderBuild::by_inputs(const Segment& segment) const {
  return {.kind = LinearCut::Kind::kInputs, .segments = {segment}, .bias = outside_blocks};
}

DecoderAttention make_decoder_attention(torch::nn::Module& layer, const DecoderBuild& build) {
  const spec::Model& spec = build.spec;
  const std::int64_t dim = build.head_dim(), kv_heads = spec.kv_heads > 0 ? spec.kv_heads : spec.heads;
  const bool bias = spec.bias || spec.decoder.qkv_bias;
  const HeadShare& share = build.heads;
  const LinearCut queries = DecoderBuild::by_outputs(elements_of(share.query, dim));
  const LinearCut keys = DecoderBuild::by_outputs(elements_of(share.key, dim), share.key_sharers);
  auto group = layer.register_module("self_attn", std::make_shared<Group>());
  DecoderAttention attention;
  attention.q = group->register_module("q_proj", build.dense(spec.hidden, spec.heads * dim, bias, queries));
  attention.k = group->register_module("k_proj", build.dense(spec.hidden, kv_heads * dim, bias, keys));
  attention.v = group->register_module("v_proj", build.dense(spec.hidden, kv_heads * dim, bias, keys));
  attention.o = group->register_module(
      "o_proj", build.dense(spec.heads * dim, spec.hidden, spec.bias || spec.decoder.attention_output_bias,
                            build.by_inputs(elements_of(share.query, dim))));
  if (spec.decoder.qk_norm == spec::QkNorm::kNone) return attention;
  attention.q_norm = group->register_module("q_norm", make_norm(build, spec.heads, share.query, 1));
  attention.k_norm = group->register_module("k_norm", make_norm(build, kv_heads, share.key, share.key_sharers));
  return attention;
}

Tensor DecoderAttention::forward(const Tensor& x, const RopeTables& tables, const AttentionOptions& options,
                                 const DecoderBuild& build) const {
  const spec::Model& spec = build.spec;
  const spec::Decoder& d = spec.decoder;
  const std::int64_t batch = x.size(0), rows = x.size(1), dim = build.head_dim();
  const auto projected = [&](const Linear& layer) {
    const Tensor y = layer.forward(x);
    return d.clip_qkv > 0 ? y.clamp(-d.clip_qkv, d.clip_qkv) : y;
  };
  const auto by_head = [&](const Tensor& y) { return y.view({batch, rows, -1, dim}); };
  const auto normed = [&](const Tensor& y, const std::shared_ptr<Norm>& norm, std::int64_t width,
                          std::int64_t sharers) {
    if (d.qk_norm == spec::QkNorm::kNone) return by_head(y);
    if (d.qk_norm == spec::QkNorm::kHead) return norm->forward(by_head(y));
    if (build.partition.tp_size() == 1) return by_head(norm->forward(y));
    return by_head(norm_over_ranks(y, *norm, width, sharers, build.partition.tp));
  };
  const std::int64_t kv_heads = spec.kv_heads > 0 ? spec.kv_heads : spec.heads;
  Tensor query = normed(projected(*q), q_norm, spec.heads * dim, 1);
  // Scores are divided by sqrt(head_dim) where they are made; the rest is the queries'.
  if (d.score_dim > 0) query = query * std::sqrt(static_cast<double>(dim) / d.score_dim);
  const Tensor key = normed(projected(*k), k_norm, kv_heads * dim, build.heads.key_sharers);
  // Positions begin anew with every document.
  const auto attend = [&](const Tensor& some_q, const Tensor& some_k, const Tensor& some_v,
                          const AttentionOptions& own) {
    const Tensor cos = tables.cos.narrow(0, 0, some_q.size(1)), sin = tables.sin.narrow(0, 0, some_q.size(1));
    return self_attention(rope(some_q, cos, sin), rope(some_k, cos, sin), some_v, own);
  };
  return attend_by_document(query, key, by_head(projected(*v)), options, attend).flatten(2);
}

}  // namespace lockstep::nn
