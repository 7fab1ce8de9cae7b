#include "lockstep/nn/attention.h"

#include "lockstep/base/error.h"
#include "lockstep/nn/attention_block.h"
#include "lockstep/nn/autograd.h"
#include "lockstep/nn/context_attention.h"
#include "lockstep/nn/cuda/operators.h"
#include "lockstep/nn/torch_compat.h"

namespace lockstep::nn {
namespace {

AttentionBlock whole_sequence(std::int64_t rows, const AttentionOptions& options) {
  AttentionBlock block;
  block.causal = options.causal;
  if (options.lengths.defined()) block.lengths = options.lengths.contiguous();
  block.dropout = {options.dropout, options.site, options.first_head};
  if (options.window < rows) block.window = options.window;
  block.softcap = options.softcap;
  block.first_query = block.first_key = options.first_row;
  block.sequence = options.whole_rows > 0 ? options.whole_rows : rows;
  return block;
}

// Rows of each document of a sample, from where documents begin.
std::vector<std::int64_t> document_lengths(const Tensor& documents, std::int64_t sample) {
  const std::int64_t rows = documents.size(1);
  const std::int64_t* begin = documents.data_ptr<std::int64_t>() + sample * rows;
  std::vector<std::int64_t> lengths;
  for (std::int64_t row = 0; row < rows; ++row) {
    const bool first = row == 0 || begin[row] != begin[row - 1];
    first ? lengths.push_back(1) : static_cast<void>(++lengths.back());
  }
  return lengths;
}

class WholeAttention : public torch::autograd::Function<WholeAttention> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const AttentionBlock& block) {
    const BlockTensors in{dense_last(q), dense_last(k), dense_last(v)};
    const BlockResult result = attention_block_forward(in, block);
    Tensor out = result.out.to(q.scalar_type());
    keep(ctx, block);
    ctx->save_for_backward({in.q, in.k, in.v, out, result.lse});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto empty = [&](const Tensor& t) { return torch::empty(t.sizes(), t.options().dtype(wide_type(t))); };
    BlockTensors gradients{empty(saved[0]), empty(saved[1]), empty(saved[2])};
    attention_block_backward({saved[0], saved[1], saved[2]}, {saved[3], saved[4]}, dense_last(grads[0]),
                             kept<AttentionBlock>(ctx), gradients, /*add=*/false);
    const auto type = saved[0].scalar_type();
    return {gradients.q.to(type), gradients.k.to(type), gradients.v.to(type), Tensor()};
  }
};

// Views of the query, key and value heads of [batch, rows, heads + 2 kv_heads, head_dim].
BlockTensors unpacked(const Tensor& qkv, std::int64_t kv_heads) {
  const auto parts = qkv.split_with_sizes({qkv.size(2) - 2 * kv_heads, kv_heads, kv_heads}, 2);
  return {parts[0], parts[1], parts[2]};
}

class PackedAttention : public torch::autograd::Function<PackedAttention> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& qkv_any, std::int64_t kv_heads,
                        const AttentionBlock& block) {
    const Tensor qkv = qkv_any.contiguous();
    const BlockResult result = attention_block_forward(unpacked(qkv, kv_heads), block);
    Tensor out = result.out.to(qkv.scalar_type());
    keep(ctx, block);
    ctx->saved_data["kv_heads"] = kv_heads;
    ctx->save_for_backward({qkv, out, result.lse});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const std::int64_t kv_heads = ctx->saved_data["kv_heads"].toInt();
    const Tensor dqkv = torch::empty(saved[0].sizes(), saved[0].options().dtype(wide_type(saved[0])));
    BlockTensors gradients = unpacked(dqkv, kv_heads);
    attention_block_backward(unpacked(saved[0], kv_heads), {saved[1], saved[2]}, dense_last(grads[0]),
                             kept<AttentionBlock>(ctx), gradients, /*add=*/false);
    return {dqkv.to(saved[0].scalar_type()), Tensor(), Tensor()};
  }
};

cuda::AttentionInputs device_inputs(const BlockTensors& in, const AttentionBlock& block) {
  const auto& [probability, site, first_head] = block.dropout;
  return {in.q, in.k, in.v, block.causal, block.lengths, probability, attention_seed(site, first_head)};
}

// Fused attention on a device, with the results that backward needs.
class DeviceAttention : public torch::autograd::Function<DeviceAttention> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const AttentionBlock& block) {
    const BlockTensors in{dense_last(q), dense_last(k), dense_last(v)};
    const cuda::AttentionResult result = cuda::attention(device_inputs(in, block));
    keep(ctx, block);
    ctx->save_for_backward({in.q, in.k, in.v, result.out, result.lse, result.philox_seed, result.philox_offset});
    return result.out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list s = ctx->get_saved_variables();
    const cuda::AttentionGradients d = cuda::attention_backward(
        device_inputs({s[0], s[1], s[2]}, kept<AttentionBlock>(ctx)), {s[3], s[4], s[5], s[6]}, grads[0].contiguous());
    return {d.q, d.k, d.v, Tensor()};
  }
};

class DevicePackedAttention : public torch::autograd::Function<DevicePackedAttention> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& qkv_any, std::int64_t kv_heads,
                        const AttentionBlock& block) {
    const Tensor qkv = qkv_any.contiguous();
    const cuda::AttentionResult result = cuda::attention(device_inputs(unpacked(qkv, kv_heads), block));
    keep(ctx, block);
    ctx->saved_data["kv_heads"] = kv_heads;
    ctx->save_for_backward({qkv, result.out, result.lse, result.philox_seed, result.philox_offset});
    return result.out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list s = ctx->get_saved_variables();
    const BlockTensors in = unpacked(s[0], ctx->saved_data["kv_heads"].toInt());
    const cuda::AttentionGradients d = cuda::attention_backward(device_inputs(in, kept<AttentionBlock>(ctx)),
                                                                {s[1], s[2], s[3], s[4]}, grads[0].contiguous());
    return {at::cat({d.q, d.k, d.v}, 2), Tensor(), Tensor()};
  }
};

// Windows and caps are this repository's alone.
bool is_usual(const AttentionBlock& block) { return block.window == 0 && block.softcap == 0; }

// Whether one of the fused kernels has this mask.
bool takes_device_kernel(const Tensor& q, const AttentionBlock& block) {
  return cuda::takes_attention(q) && !(block.causal && block.lengths.defined()) && is_usual(block);
}

// libtorch's fused kernels, where this repository has none and no dropout asks for masks of its own.
bool prefers_sdpa(const Tensor& q, const AttentionBlock& block) {
  return compat::has_sdpa() && !has_attention_kernel(q) && block.dropout.probability == 0.0 && is_usual(block);
}

Tensor sdpa(const BlockTensors& in, const AttentionBlock& block) {
  const std::int64_t group = in.q.size(2) / in.k.size(2), rows = in.q.size(1);
  Tensor seen;
  if (block.lengths.defined()) seen = hidden_keys(block, 0, rows, rows, in.q.device()).logical_not();
  const bool causal = block.causal && !seen.defined();  // `seen` says it too
  const Tensor out =
      compat::sdpa(heads_first(in.q, 1), heads_first(in.k, group), heads_first(in.v, group), seen, causal);
  return out.transpose(1, 2).contiguous();
}

}  // namespace

std::uint64_t attention_seed(const DropoutSite& site, std::int64_t first_head) {
  const PhiloxKey key = stream_key(site.seed, "attention");
  const PhiloxCounter words =
      philox({static_cast<std::uint32_t>(site.step), static_cast<std::uint32_t>(site.first_index), site.layer,
              static_cast<std::uint32_t>(first_head)},
             key);
  return static_cast<std::uint64_t>(words[0]) << 32 | words[1];
}

Tensor attend_by_document(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
                          const Attend& attend) {
  if (!options.documents.defined() || q.numel() == 0) return attend(q, k, v, options);
  const Tensor documents = options.documents.contiguous();
  LOCKSTEP_ASSERT(documents.size(0) == q.size(0) && documents.size(1) == q.size(1), "documents of whole sequences");
  AttentionOptions own = options;
  own.documents = Tensor();
  own.whole_rows = q.size(1);
  const auto queries = q.split(1, 0), keys = k.split(1, 0), values = v.split(1, 0);
  std::vector<Tensor> samples;
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const std::vector<std::int64_t> lengths = document_lengths(documents, static_cast<std::int64_t>(i));
    // Split at once: a view each would give a gradient of the whole sequence for every document.
    const auto qs = queries[i].split_with_sizes(lengths, 1), ks = keys[i].split_with_sizes(lengths, 1),
               vs = values[i].split_with_sizes(lengths, 1);
    std::vector<Tensor> parts;
    own.first_row = 0;
    own.site.first_index = options.site.first_index + static_cast<std::int64_t>(i);
    for (std::size_t part = 0; part < lengths.size(); ++part) {
      parts.push_back(attend(qs[part], ks[part], vs[part], own));
      own.first_row += lengths[part];
    }
    samples.push_back(at::cat(parts, 1));
  }
  return at::cat(samples, 0);
}

Tensor self_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  LOCKSTEP_ASSERT(q.dim() == 4 && k.sizes() == v.sizes() && q.size(2) % k.size(2) == 0, "shapes of attention");
  if (options.partition != nullptr && options.partition->cp_size() > 1) return context_attention(q, k, v, options);
  if (q.numel() == 0) return torch::zeros_like(q);
  const AttentionBlock block = whole_sequence(q.size(1), options);
  if (takes_device_kernel(q, block)) return DeviceAttention::apply(q, k, v, block);
  return prefers_sdpa(q, block) ? sdpa({q, k, v}, block) : WholeAttention::apply(q, k, v, block);
}

Tensor self_attention_packed(const Tensor& qkv, std::int64_t kv_heads, const AttentionOptions& options) {
  LOCKSTEP_ASSERT(qkv.dim() == 4 && (qkv.size(2) - 2 * kv_heads) % kv_heads == 0, "shape of packed attention");
  const AttentionBlock block = whole_sequence(qkv.size(1), options);
  if (qkv.numel() == 0) return qkv.narrow(2, 0, qkv.size(2) - 2 * kv_heads);
  if (takes_device_kernel(qkv, block)) return DevicePackedAttention::apply(qkv, kv_heads, block);
  if (prefers_sdpa(qkv, block)) return sdpa(unpacked(qkv, kv_heads), block);
  return PackedAttention::apply(qkv, kv_heads, block);
}

Tensor causal_attention_packed(const Tensor& qkv, std::int64_t heads, const AttentionDropout& dropout) {
  AttentionOptions options;
  options.dropout = dropout.probability;
  options.site = dropout.site;
  options.first_head = dropout.first_head;
  const Tensor by_head = qkv.reshape({qkv.size(0), qkv.size(1), 3 * heads, qkv.size(2) / (3 * heads)});
  return self_attention_packed(by_head, heads, options).flatten(2);
}

}  // namespace lockstep::nn
