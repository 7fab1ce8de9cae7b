#include "lockstep/cost/layer.h"

#include <algorithm>

#include "lockstep/cost/traffic.h"

namespace lockstep::cost {
namespace {

using spec::Arch;

// Sums of one layer while its parts are added.
struct Work {
  double forward = 0;
  double input_gradient = 0;
  double weight_gradient = 0;
};

void add_gemm(Work& work, const LayerContext& c, double m, double n, double k, double count = 1) {
  const double backward = c.constants.gemm_backward * count;
  work.forward += gemm_seconds(c.rates, m, n, k).value() * count;
  work.input_gradient += gemm_seconds(c.rates, m, k, n).value() * backward;
  work.weight_gradient += gemm_seconds(c.rates, n, k, m).value() * backward;
}

// Backward of a streaming kernel reads the gradient as well and writes one: twice the traffic of forward.
void add_stream(Work& work, const LayerContext& c, double bytes) {
  const double seconds = stream_seconds(c.rates, Bytes(bytes)).value();
  work.forward += seconds;
  work.input_gradient += 2 * seconds;
}

using Local = LocalSizes;

Local local_of(const LayerContext& c) { return local_sizes(c.model, c.layout, c.micro, c.sequence); }

// Softmax(Q K^T) V. Fused: backward does 2.5 times the FLOPs (Dao et al. 2022, recomputing the scores). Unfused: two
// batched products over the whole square and passes over the scores.
Work attention(const LayerContext& c, const Local& l) {
  Work work;
  const double head_dim = c.model.head_dim;
  double seconds = 0;
  double backward = 0;
  if (c.facts.flash_attention) {
    seconds =
        fused_attention_seconds(c.rates, l.tokens, keys_per_token(c.model, c.sequence), l.width, c.sequence, head_dim)
            .value();
    backward = 2.5 * c.constants.attention_backward * seconds;
  } else {
    const double squares = l.tokens * l.width / head_dim;  // rows of scores over all heads of this rank
    const double products = 2 * gemm_seconds(c.rates, c.sequence, c.sequence, head_dim).value() * squares / c.sequence;
    const double softmax =
        stream_seconds(c.rates, Bytes(c.constants.softmax_passes * squares * c.sequence * l.element)).value();
    seconds = products + softmax;
    backward = 2 * c.constants.gemm_backward * products + 1.5 * softmax;
  }
  const bool misaligned = static_cast<std::int64_t>(head_dim) % 8 != 0;
  const double factor = misaligned ? c.constants.misaligned_heads : 1.0;
  work.forward = seconds * factor;
  work.input_gradient = backward * factor;
  return work;
}

// Routed experts: `tokens` x top-k rows, spread evenly over the experts of this rank.
// Layers without experts take their share of the time of a layer.
void add_experts(Work& work, const LayerContext& c, const Local& l) {
  const double layers = 1 - c.model.dense_share;
  const double local_experts = c.model.experts / static_cast<double>(c.layout.ep);
  const double rows = std::max(1.0, l.tokens * c.model.experts_per_token / local_experts);
  add_gemm(work, c, rows, (c.model.gated ? 2 : 1) * l.ffn, c.model.hidden, layers * local_experts);
  add_gemm(work, c, rows, c.model.hidden, l.ffn, layers * local_experts);
  add_gemm(work, c, l.tokens, c.model.experts, c.model.hidden, layers);  // router
  const double routed = layers * l.tokens * c.model.experts_per_token;
  // Sorting tokens to experts and back: each way reads and writes a row.
  add_stream(work, c, c.constants.pointwise_passes * routed * c.model.hidden * l.element * 4);
}

void add_mlp(Work& work, const LayerContext& c, const Local& l, double ffn, double layers = 1) {
  add_gemm(work, c, l.tokens, (c.model.gated ? 2 : 1) * ffn, c.model.hidden, layers);
  add_gemm(work, c, l.tokens, c.model.hidden, ffn, layers);
}

// Queries, keys and values, and the output. The narrow products of latent attention are every rank's own.
void add_projections(Work& work, const LayerContext& c, const Local& l) {
  const Dimensions& m = c.model;
  if (m.key_value_rank == 0) {
    add_gemm(work, c, l.tokens, l.width + 2 * l.kv_width, m.hidden);
    add_gemm(work, c, l.tokens, m.hidden, l.width);
    return;
  }
  const double heads = m.heads / l.tp;
  if (m.query_rank > 0) add_gemm(work, c, l.tokens, m.query_rank, m.hidden);
  add_gemm(work, c, l.tokens, heads * m.key_dim, m.query_rank > 0 ? m.query_rank : m.hidden);
  add_gemm(work, c, l.tokens, m.key_value_rank + m.rotated_keys, m.hidden);
  add_gemm(work, c, l.tokens, heads * (m.key_dim - m.rotated_keys + m.value_dim), m.key_value_rank);
  add_gemm(work, c, l.tokens, m.hidden, heads * m.value_dim);
}

// Width of the MLPs that a token passes in a layer, the mean over layers.
double mlp_width(const LayerContext& c, const Local& l) {
  if (c.model.experts == 0) return l.ffn;
  return (1 - c.model.dense_share) * l.ffn * (c.model.experts_per_token + c.model.shared_experts) +
         c.model.dense_share * c.model.dense_ffn / l.tp;
}

// Traffic of norms (read, write), residual adds with dropout (two reads, a write), activation, rotary positions.
double pointwise_bytes(const LayerContext& c, const Local& l) {
  const double outside = (c.model.norms * 2 + 2 * 3 + (c.model.dropout ? 2 : 0)) * c.model.hidden / l.outside;
  const double activation = (c.model.gated ? 3 : 2) * mlp_width(c, l);
  const double rotary = 2 * (c.model.rotary + (c.model.qk_norm ? 1 : 0)) * (l.width + l.kv_width) +
                        2 * (c.model.query_rank + c.model.key_value_rank);  // norms of latent attention
  const double fusion = c.facts.fused_pointwise ? 1.0 : 1.6;
  return c.constants.pointwise_passes * fusion * l.tokens * l.element * (outside + activation + rotary);
}

// Selective state-space layer (Gu & Dao 2023, algorithm 2): projections, a short convolution, and a scan of about nine
// operations per token, channel and state that runs on the vector units.
Work mamba(const LayerContext& c, const Local& l) {
  Work work;
  const double inner = c.model.inner / l.tp;
  add_gemm(work, c, l.tokens, 2 * inner, c.model.hidden);
  add_gemm(work, c, l.tokens, c.model.dt_rank + 2 * c.model.state, inner);
  add_gemm(work, c, l.tokens, inner, c.model.dt_rank);
  add_gemm(work, c, l.tokens, c.model.hidden, inner);
  const double scan = (Flops(9 * l.tokens * inner * c.model.state) / (c.rates.vector * 0.25)).value();
  work.forward += scan;
  work.input_gradient += 2.5 * scan;
  const double pointwise = (2 + 3) * c.model.hidden / l.outside + (2 * 2 + 3 + 4) * inner;
  add_stream(work, c, c.constants.pointwise_passes * l.tokens * l.element * pointwise);
  return work;
}

// What a tensor-parallel collective takes with nothing to send.
double tp_least_seconds(const LayerContext& c, CollectiveOp op) {
  const double latency = collective_on_links(c.links, c.groups.tp, op, Bytes(0)).value();
  return (c.constants.tp_host_seconds + latency) * (c.layout.pp > 1 ? c.constants.tp_pipeline_factor : 1.0);
}

// Counts and bytes are traffic.h's. An all-gather and a reduce-scatter of one block take the same time.
void add_tp(LayerSeconds& out, const LayerContext& c, const Local& l) {
  if (c.layout.tp == 1) return;
  const double blocks = tensor_blocks(c.model);
  const auto seconds = [&](CollectiveOp op, double bytes) {
    return collective_on_links(c.links, c.groups.tp, op, Bytes(bytes)).value();
  };
  const double volume = tensor_block_bytes(c.model, l, c.facts);
  if (c.layout.sequence_parallel) {
    const double gather = seconds(CollectiveOp::kAllGather, volume);
    const double in_backward = 2 + tensor_inputs_gathered_again(c.layout, c.facts);
    out.tp_forward = blocks * 2 * gather;
    out.tp_backward = blocks * in_backward * gather;
    const double least = tp_least_seconds(c, CollectiveOp::kAllGather);
    out.tp_host_forward = blocks * 2 * least;
    out.tp_host_backward = blocks * in_backward * least;
  } else {
    const double reduce = seconds(CollectiveOp::kAllReduce, volume);
    out.tp_forward = blocks * reduce;
    out.tp_backward = blocks * reduce;
    const double least = tp_least_seconds(c, CollectiveOp::kAllReduce);
    out.tp_host_forward = blocks * least;
    out.tp_host_backward = blocks * least;
  }
  const double projection = tensor_projection_bytes(c.model, l, c.facts);
  if (projection == 0) return;
  const double reduce = seconds(CollectiveOp::kAllReduce, projection);
  const double least = tp_least_seconds(c, CollectiveOp::kAllReduce);
  out.tp_forward += reduce;
  out.tp_backward += reduce;
  out.tp_host_forward += least;
  out.tp_host_backward += least;
}

// The ring costs what an all-gather of the keys and values does; a state passes through the ranks one after the other.
void add_cp(LayerSeconds& out, const LayerContext& c, const Local& l) {
  if (c.layout.cp == 1) return;
  const auto seconds = [&](CollectiveOp op, double bytes) {
    return collective_on_links(c.links, c.groups.cp, op, Bytes(bytes)).value();
  };
  if (c.model.arch == Arch::kMamba) {
    out.cp_forward = seconds(CollectiveOp::kSendReceive, context_state_bytes(c.model, l, c.micro, c.facts)) * l.cp;
    out.cp_backward = out.cp_forward;
    return;
  }
  if (c.layout.context_exchange == plan::ContextExchange::kAllToAll) {
    out.cp_forward = seconds(CollectiveOp::kAllToAll, context_all_to_all_bytes(c.model, l, c.facts));
    out.cp_backward = out.cp_forward;
    return;
  }
  out.cp_forward = seconds(CollectiveOp::kAllGather, l.cp * context_ring_step_bytes(l));
  out.cp_backward = kContextRingsInBackward * out.cp_forward;
}

void add_ep(LayerSeconds& out, const LayerContext& c, const Local& l) {
  if (c.layout.ep == 1 || c.model.experts == 0) return;
  const Bytes bytes(expert_all_to_all_bytes(c.model, l, c.facts));
  const double exchange = collective_on_links(c.links, c.groups.ep, CollectiveOp::kAllToAll, bytes).value();
  out.ep_forward = kExpertExchanges * exchange;
  out.ep_backward = kExpertExchanges * exchange;
}

// Forward seconds of parts of a layer.
struct ForwardParts {
  double projections = 0;  // of the attention block
  double core = 0;
  double pointwise = 0;
};

// Full recompute runs forward again, its communication included (Chen et al. 2016). Selective redoes the attention
// core where its scores would be kept (Korthikanti et al. 2022), and norms and activations where they would not; or
// the attention block as a whole.
void add_recompute(LayerSeconds& out, const LayerContext& c, const ForwardParts& parts) {
  if (c.layout.recompute == plan::Recompute::kNone) return;
  const double blocks = tensor_blocks_again(c.model, c.layout, c.facts) / tensor_blocks(c.model);
  out.tp_backward += blocks * out.tp_forward;
  out.tp_host_backward += blocks * out.tp_host_forward;
  if (recomputes_attention(c.model, c.layout, c.facts)) out.cp_backward += out.cp_forward;
  if (c.layout.recompute == plan::Recompute::kFull) {
    out.recompute = out.forward;
    out.ep_backward += out.ep_forward;
  } else if (c.facts.recomputes_every_second_product && c.model.arch != Arch::kMamba) {
    out.recompute = (out.forward - parts.core - parts.pointwise) / 2 + parts.pointwise;
  } else if (!c.facts.recomputes_attention_block) {
    out.recompute = c.facts.flash_attention || c.model.arch == Arch::kMamba ? parts.pointwise : parts.core;
  } else if (c.model.arch != Arch::kMamba) {
    out.recompute = parts.projections + parts.core + parts.pointwise / 2;
  }
}

// What one token leaves behind in one layer, in bytes: outside the tensor-parallel blocks, inside, and scores.
struct TokenBytes {
  double outside = 0, inside = 0, scores = 0;
  double again = 0;  // what selective recompute does not keep
};

// x and z, convolution output, delta, scan output, and B, C; the scan recomputes its states (Gu & Dao 2023, 3.3).
TokenBytes mamba_bytes(const LayerContext& c, const Local& l, double hidden) {
  const double e = l.element;
  const double inner = c.model.inner / l.tp;
  TokenBytes token;
  token.outside = e * 2 * hidden;
  token.inside = e * (2 * inner + inner + inner + inner) + e * (c.model.dt_rank + 2 * c.model.state);
  token.again = c.facts.recomputes_attention_block ? 0 : e * (hidden + 2 * inner);
  return token;
}

// Korthikanti et al. 2022, section 4, tensor by tensor: outside the tensor-parallel blocks two norm inputs, two block
// inputs and two dropout masks; inside queries, keys, values, attention output and the activation's input and output;
// five bytes per score where attention is not fused. GPT with 16-bit activations: s b h (34 + 5 a s / h).
TokenBytes transformer_bytes(const LayerContext& c, const Local& l, double hidden) {
  const double e = l.element;
  const double masks = c.model.dropout ? 2 * hidden : 0.0;
  const double inner = mlp_width(c, l);
  const double activation = (c.model.gated ? 3 : 2) * inner;
  const double heads = l.width / c.model.head_dim;
  TokenBytes token;
  // The input of every norm, and that of the two blocks (of a parallel layer: behind each norm).
  token.outside = e * (c.model.norms + std::min(2.0, c.model.norms)) * hidden + masks;
  token.inside = e * ((c.model.qk_norm ? 3 : 2) * l.width + (c.model.qk_norm ? 3 : 2) * l.kv_width + activation);
  if (c.model.qk_norm) token.inside -= e * l.kv_width;  // values are not normalised
  // Latent attention keeps what the norms of the narrow products read and what they write.
  token.inside += e * (2 * c.model.query_rank + 2 * c.model.key_value_rank + c.model.rotated_keys);
  // Eager SwiGLU keeps silu(gate) beside gate, up and their product; eager rotary the vectors before and after.
  if (c.model.gated && !c.facts.fused_pointwise) token.inside += e * (inner + l.width + l.kv_width);
  if (c.model.experts > 0) {
    token.inside += (1 - c.model.dense_share) * e * 2 * c.model.experts_per_token * c.model.hidden /
                    (c.facts.gathers_before_dispatch ? 1.0 : l.outside);
  }
  if (c.facts.flash_attention) {
    token.inside += 4 * heads;  // log-sum-exp
    token.again = e * (2 * hidden + inner);
  } else {
    token.scores = (2 * e + 1) * heads * c.sequence;
    token.again = token.scores;
  }
  if (c.facts.recomputes_attention_block) {  // all but the block's input
    const double core = c.facts.flash_attention ? 4 * heads : token.scores;
    token.again = e * (hidden + 2 * l.width + 2 * l.kv_width) + masks / 2 + core;
  }
  if (c.facts.recomputes_every_second_product) {
    const double products = 2 * hidden + l.width + 2 * l.kv_width + (c.model.gated ? 2 : 1) * inner;
    const double kept = e * (hidden + l.width + products / 2) + 4 * heads;
    token.again = std::max(0.0, token.outside + token.inside + token.scores - kept);
  }
  return token;
}

// What the blocks of Llama's relatives add or leave out.
void add_decoder(const spec::Model& model, Dimensions& d) {
  const spec::Decoder& decoder = model.decoder;
  const double layers = static_cast<double>(std::max<std::int64_t>(1, model.layers));
  d.rotary = decoder.rotary_fraction;
  d.qk_norm = decoder.qk_norm != spec::QkNorm::kNone;
  d.fused_gate = model.activation == spec::Activation::kSilu && decoder.norm_place == spec::NormPlace::kBefore;
  if (decoder.norm_place == spec::NormPlace::kBoth) d.norms = 4;
  if (decoder.parallel_block == spec::ParallelBlock::kOneNorm) d.norms = d.blocks = 1;
  if (decoder.parallel_block == spec::ParallelBlock::kTwoNorms) d.blocks = 1.5;  // entered twice, left once
  if (spec::is_latent(model)) {
    d.key_value_rank = static_cast<double>(decoder.key_value_rank);
    d.query_rank = static_cast<double>(decoder.query_rank);
    d.key_dim = static_cast<double>(model.head_dim);
    d.value_dim = static_cast<double>(decoder.value_dim);
    d.rotated_keys = static_cast<double>(spec::rotary_dim(model));
    d.head_dim = (d.key_dim + d.value_dim) / 2;
    const double narrow = d.query_rank + d.key_value_rank;
    d.whole_parameters_per_layer = d.hidden * (narrow + d.rotated_keys) + narrow;
  }
  std::int64_t windowed = 0;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) windowed += spec::window_of(model, layer) > 0 ? 1 : 0;
  d.window = static_cast<double>(decoder.sliding_window);
  d.windowed_share = static_cast<double>(windowed) / layers;
  d.dense_share = model.experts > 0 ? static_cast<double>(decoder.dense_layers) / layers : 0.0;
  d.dense_ffn = static_cast<double>(decoder.dense_ffn_hidden);
}

}  // namespace

double keys_per_token(const Dimensions& model, double sequence) {
  if (!model.causal || sequence <= 0) return sequence;
  const double window = std::min(model.window, sequence), share = model.windowed_share;
  return (1 - share) * sequence / 2 + share * window * (1 - window / (2 * sequence));
}

Dimensions dimensions_of(const spec::Model& model) {
  Dimensions d;
  d.arch = model.arch;
  d.layers = static_cast<double>(model.layers);
  d.hidden = static_cast<double>(model.hidden);
  d.heads = static_cast<double>(model.heads);
  d.kv_heads = static_cast<double>(model.kv_heads);
  d.head_dim = static_cast<double>(model.head_dim);
  d.ffn = static_cast<double>(model.ffn_hidden);
  d.vocab = static_cast<double>(model.vocab);
  d.gated = spec::has_decoder(model) && model.decoder.gated_mlp;
  if (spec::has_decoder(model)) add_decoder(model, d);
  d.causal = model.arch != Arch::kBert;
  d.dropout = model.dropout > 0;
  d.tied = model.classes == 0 && (model.tied_embeddings || model.arch == Arch::kBert);
  d.experts = static_cast<double>(model.experts);
  d.experts_per_token = static_cast<double>(model.experts_per_token);
  d.shared_experts = static_cast<double>(model.shared_experts);
  d.inner = static_cast<double>(model.expand * model.hidden);
  d.state = static_cast<double>(model.state_size);
  d.dt_rank = static_cast<double>(model.dt_rank);
  d.conv_kernel = static_cast<double>(model.conv_kernel);

  const double total = static_cast<double>(spec::parameter_count(model));
  const double expert = (1 - d.dense_share) * d.experts * (d.gated ? 3 : 2) * d.hidden * d.ffn;
  d.expert_parameters_per_layer = expert;
  const double positions =
      model.arch == Arch::kGpt || model.arch == Arch::kBert ? static_cast<double>(model.max_sequence) * d.hidden : 0.0;
  d.embedding_parameters = d.vocab * d.hidden + positions;
  const double head = model.classes > 0 ? d.hidden * static_cast<double>(model.classes) : d.vocab * d.hidden;
  d.head_parameters = head;
  const double around = d.embedding_parameters + (d.tied ? 0.0 : head);
  d.dense_parameters_per_layer = std::max(0.0, (total - around) / std::max(1.0, d.layers) - expert);
  return d;
}

LayerSeconds layer_seconds(const LayerContext& c) {
  const Local l = local_of(c);
  Work work;
  Work core;
  double pointwise_forward = 0;
  double projections = 0;  // of the attention block
  if (c.model.arch == Arch::kMamba) {
    work = mamba(c, l);
    pointwise_forward = 0.3 * work.forward;
  } else {
    add_projections(work, c, l);
    projections = work.forward;
    if (c.model.experts > 0) {
      const double dense = c.model.dense_share;
      add_experts(work, c, l);
      if (c.model.shared_experts > 0) add_mlp(work, c, l, c.model.shared_experts * l.ffn, 1 - dense);
      if (dense > 0) add_mlp(work, c, l, c.model.dense_ffn / l.tp, dense);
    } else {
      add_mlp(work, c, l, l.ffn);
    }
    core = attention(c, l);
    const double before = work.forward;
    add_stream(work, c, pointwise_bytes(c, l));
    pointwise_forward = work.forward - before;
  }
  LayerSeconds out;
  out.forward = work.forward + core.forward;
  // Frozen weights have no gradient: of a layer with adapters the base passes the gradient on alone.
  out.weight_gradient = c.facts.trained_share * work.weight_gradient;
  out.backward = work.input_gradient + out.weight_gradient + core.input_gradient;
  add_tp(out, c, l);
  add_cp(out, c, l);
  add_ep(out, c, l);
  add_recompute(out, c, {projections, core.forward, pointwise_forward});
  return out;
}

LayerBytes layer_bytes(const LayerContext& c) {
  const Local l = local_of(c);
  const double e = l.element;
  const double hidden = c.model.hidden / l.outside;
  const TokenBytes token = c.model.arch == Arch::kMamba ? mamba_bytes(c, l, hidden) : transformer_bytes(c, l, hidden);
  const double all = l.tokens * (token.outside + token.inside + token.scores);
  const double widest = std::max(c.model.hidden, (c.model.gated ? 2 : 1) * l.ffn);
  LayerBytes bytes;
  if (c.facts.keeps_gathered_until_backward) {
    const double blocks = tensor_blocks(c.model) - tensor_blocks_again(c.model, c.layout, c.facts);
    bytes.gathered = l.tokens * e * blocks * (c.model.hidden - hidden);
  } else if (c.facts.keeps_gathered_inputs && c.layout.recompute != plan::Recompute::kFull) {
    // Gathered inputs are tensors of their own beside the shards they were made of.
    bytes.gathered = l.outside > 1 ? l.tokens * e * 2 * c.model.hidden : 0.0;
  }
  switch (c.layout.recompute) {
    case plan::Recompute::kNone:
      bytes.kept = all;
      bytes.transient = l.tokens * e * 2 * widest;
      break;
    case plan::Recompute::kSelective:
      bytes.kept = all - l.tokens * token.again;
      bytes.transient = l.tokens * (token.again + e * 2 * widest);
      break;
    case plan::Recompute::kFull:
      bytes.kept = l.tokens * e * hidden;
      bytes.transient = all + l.tokens * e * 2 * widest;
      break;
  }
  return bytes;
}

LayerSeconds head_seconds(const LayerContext& c) {
  const Local l = local_of(c);
  LayerSeconds out;
  if (c.model.head_parameters < c.model.vocab * c.model.hidden) return out;  // a classifier: a few rows
  Work work;
  add_gemm(work, c, l.tokens, c.model.vocab / l.tp, c.model.hidden);
  const double logits = l.tokens * c.model.vocab / l.tp * 4;
  const double loss = stream_seconds(c.rates, Bytes(c.constants.logits_passes * logits)).value();
  out.forward = work.forward + loss / 2;
  out.weight_gradient = c.facts.trained_share * work.weight_gradient;
  out.backward = work.input_gradient + out.weight_gradient + loss / 2;
  if (c.layout.tp > 1) {
    const double gather =
        collective_on_links(c.links, c.groups.tp, CollectiveOp::kAllGather, Bytes(hidden_bytes(c.model, l))).value();
    out.tp_forward = gather;
    out.tp_backward = gather;
  }
  return out;
}

LayerSeconds embedding_seconds(const LayerContext& c) {
  const Local l = local_of(c);
  LayerSeconds out;
  const double rows = stream_seconds(c.rates, Bytes(2 * l.tokens * c.model.hidden * l.element)).value();
  out.forward = rows;
  out.backward = 2 * rows;
  if (c.layout.tp > 1) {
    out.tp_forward =
        collective_on_links(c.links, c.groups.tp, CollectiveOp::kReduceScatter, Bytes(hidden_bytes(c.model, l)))
            .value();
    out.tp_backward = out.tp_forward;
  }
  return out;
}

// The logits in the layout's precision, in fp32, their softmax and their gradient.
double logits_bytes(const LayerContext& c) {
  if (c.model.head_parameters < c.model.vocab * c.model.hidden) return 0;
  const Local l = local_of(c);
  return c.facts.logits_share * l.tokens * c.model.vocab / l.tp * (l.element + 12);
}

}  // namespace lockstep::cost
