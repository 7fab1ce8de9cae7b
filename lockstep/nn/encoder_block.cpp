#include "lockstep/nn/encoder_block.h"

#include <memory>

#include "lockstep/nn/attention.h"
#include "lockstep/nn/autograd.h"
#include "lockstep/nn/cuda/operators.h"
#include "lockstep/nn/deferred_gradients.h"

namespace lockstep::nn {
namespace {

// Gradients of the weights that were multiplied as one: one product for all three, made when the first is asked for.
variable_list packed_gradients(const variable_list& weights, const Tensor& x, const Tensor& dy) {
  const auto whole = std::make_shared<Tensor>();
  const std::int64_t rows = weights[0].size(0);
  variable_list gradients;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    gradients.push_back(gradient_now_or_later(weights[i], [whole, x, dy, rows, i] {
      if (!whole->defined()) *whole = dy.t().mm(x);
      return whole->narrow(0, static_cast<std::int64_t>(i) * rows, rows);
    }));
  }
  return gradients;
}

cuda::Drop drop_of(double probability, const DropoutSite& site, const Tensor& x) {
  return {.probability = probability, .site = site, .positions = {}, .rows_per_sample = x.size(1)};
}

struct AttentionKept {
  EncoderAttentionOptions options;
  cuda::Drop drop;
};

class EncoderAttention : public torch::autograd::Function<EncoderAttention> {
 public:
  static cuda::AttentionInputs inputs(const Tensor& qkv, const EncoderAttentionOptions& o) {
    const auto parts = qkv.view({qkv.size(0), qkv.size(1), 3, o.heads, qkv.size(2) / (3 * o.heads)}).unbind(2);
    return {parts[0], parts[1], parts[2], false, o.lengths, o.dropout, attention_seed(o.probabilities, 0)};
  }

  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& wq, const Tensor& bq, const Tensor& wk,
                        const Tensor& bk, const Tensor& wv, const Tensor& bv, const Tensor& wo, const Tensor& bo,
                        const Tensor& norm_weight, const Tensor& norm_bias, double epsilon,
                        const EncoderAttentionOptions& options) {
    const Tensor x2 = as_matrix(x).contiguous(), weight = at::cat({wq, wk, wv});
    const Tensor qkv = at::addmm(at::cat({bq, bk, bv}), x2, weight.t()).view({x.size(0), x.size(1), -1});
    const cuda::AttentionResult attended = cuda::attention(inputs(qkv, options));
    const AttentionKept keeps{options, drop_of(options.dropout, options.output, x)};
    const cuda::AddNorm sum = cuda::add_norm(as_matrix(attended.out.flatten(2)).mm(wo.t()), bo, x2, norm_weight,
                                             norm_bias, epsilon, keeps.drop);
    keep(ctx, keeps);
    ctx->save_for_backward({x2, weight, qkv, attended.out, attended.lse, attended.philox_seed, attended.philox_offset,
                            sum.sum, sum.mean, sum.rstd, wq, wk, wv, wo, norm_weight, sum.kept});
    return sum.y.view(x.sizes());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list s = ctx->get_saved_variables();
    const Tensor &x = s[0], &weight = s[1], &qkv = s[2], &out = s[3], &wo = s[13];
    const auto& [options, drop] = kept<AttentionKept>(ctx);
    cuda::AddNormGradients g =
        cuda::add_norm_backward(as_matrix(grads[0]).contiguous(), s[7], s[8], s[9], s[15], s[14], drop);
    const Tensor dout = g.x.mm(wo).view(out.sizes());
    const Tensor dwo = weight_gradient(wo, as_matrix(out.flatten(2)), g.x, WeightLayout::kOutIn);
    const cuda::AttentionGradients d = cuda::attention_backward(inputs(qkv, options), {out, s[4], s[5], s[6]}, dout);
    const auto matrix = [](const Tensor& t) { return as_matrix(t.flatten(2)); };
    const cuda::Joined joined = cuda::join_columns(matrix(d.q), matrix(d.k), matrix(d.v));
    const variable_list dw = packed_gradients({s[10], s[11], s[12]}, x, joined.matrix);
    const auto db = joined.sums.chunk(3);
    if (g.residual.is_same(g.x) && !dwo.defined()) g.residual = g.x.clone();  // a deferred product will read g.x
    const Tensor dx = g.residual.addmm_(joined.matrix, weight).view(grads[0].sizes());
    return {dx, dw[0], db[0], dw[1], db[1], dw[2], db[2], dwo, g.bias, g.norm_weight, g.norm_bias, Tensor(), Tensor()};
  }
};

struct MlpKept {
  cuda::Drop drop;
  cuda::Gelu gelu;
};

class EncoderMlp : public torch::autograd::Function<EncoderMlp> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& w1, const Tensor& b1, const Tensor& w2,
                        const Tensor& b2, const Tensor& norm_weight, const Tensor& norm_bias, double epsilon,
                        const MlpKept& keeps) {
    const Tensor x2 = as_matrix(x).contiguous();
    const Tensor pre = x2.mm(w1.t());
    const Tensor inner = cuda::gelu(pre, b1, keeps.gelu);
    const cuda::AddNorm sum = cuda::add_norm(inner.mm(w2.t()), b2, x2, norm_weight, norm_bias, epsilon, keeps.drop);
    keep(ctx, keeps);
    ctx->save_for_backward({x2, pre, inner, sum.sum, sum.mean, sum.rstd, w1, b1, w2, norm_weight, sum.kept});
    return sum.y.view(x.sizes());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list s = ctx->get_saved_variables();
    const Tensor &x = s[0], &pre = s[1], &inner = s[2], &w1 = s[6], &w2 = s[8];
    const MlpKept& keeps = kept<MlpKept>(ctx);
    cuda::AddNormGradients g =
        cuda::add_norm_backward(as_matrix(grads[0]).contiguous(), s[3], s[4], s[5], s[10], s[9], keeps.drop);
    Tensor dpre = g.x.mm(w2);
    const Tensor dw2 = weight_gradient(w2, inner, g.x, WeightLayout::kOutIn);
    const Tensor db1 = cuda::gelu_backward(pre, s[7], dpre, keeps.gelu);
    const Tensor dw1 = weight_gradient(w1, x, dpre, WeightLayout::kOutIn);
    if (g.residual.is_same(g.x) && !dw2.defined()) g.residual = g.x.clone();  // a deferred product will read g.x
    const Tensor dx = g.residual.addmm_(dpre, w1).view(grads[0].sizes());
    return {dx, dw1, db1, dw2, g.bias, g.norm_weight, g.norm_bias, Tensor(), Tensor()};
  }
};

}  // namespace

bool takes_encoder_block(const Tensor& x) { return cuda::takes(x) && x.dim() == 3; }

Tensor encoder_attention(const Tensor& x, const LinearTensors& query, const LinearTensors& key,
                         const LinearTensors& value, const LinearTensors& out, const NormTensors& norm,
                         const EncoderAttentionOptions& options) {
  return EncoderAttention::apply(x, query.weight, query.bias, key.weight, key.bias, value.weight, value.bias,
                                 out.weight, out.bias, norm.weight, norm.bias, norm.epsilon, options);
}

Tensor encoder_mlp(const Tensor& x, const LinearTensors& up, const LinearTensors& down, const NormTensors& norm,
                   bool tanh_form, double dropout, const DropoutSite& site) {
  const MlpKept keeps{drop_of(dropout, site, x), tanh_form ? cuda::Gelu::kTanh : cuda::Gelu::kErf};
  return EncoderMlp::apply(x, up.weight, up.bias, down.weight, down.bias, norm.weight, norm.bias, norm.epsilon, keeps);
}

}  // namespace lockstep::nn
