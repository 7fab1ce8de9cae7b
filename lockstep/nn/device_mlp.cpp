#include "lockstep/nn/device_mlp.h"

#include "lockstep/nn/autograd.h"
#include "lockstep/nn/cuda/operators.h"
#include "lockstep/nn/deferred_gradients.h"

namespace lockstep::nn {
namespace {

Tensor dense_matrix(const Tensor& x) { return as_matrix(x).contiguous(); }

class GeluMlp : public torch::autograd::Function<GeluMlp> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& residual, const Tensor& x, const Tensor& w1,
                        const MaybeTensor& b1, const Tensor& w2, const MaybeTensor& b2, std::int64_t number) {
    const auto layout = static_cast<WeightLayout>(number);
    const Tensor x2 = dense_matrix(x), pre = x2.mm(in_out(w1, layout));
    const Tensor inner = cuda::gelu(pre, given(b1), cuda::Gelu::kTanh);
    ctx->save_for_backward({x2, pre, inner, w1, given(b1), w2});
    ctx->saved_data["layout"] = number;
    ctx->saved_data["bias"] = b2.has_value();
    Tensor out = dense_matrix(residual);
    out = b2 ? out + *b2 : out.clone();
    return out.addmm_(inner, in_out(w2, layout)).view(residual.sizes());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto s = ctx->get_saved_variables();
    const auto layout = static_cast<WeightLayout>(ctx->saved_data["layout"].toInt());
    const Tensor dy = dense_matrix(grads[0]);
    Tensor dpre = dy.mm(in_out(s[5], layout).t());
    const Tensor dw2 = weight_gradient(s[5], s[2], dy, layout);
    const Tensor db2 = ctx->saved_data["bias"].toBool() ? cuda::column_sums(dy) : Tensor();
    const Tensor db1 = cuda::gelu_backward(s[1], s[4], dpre, cuda::Gelu::kTanh);
    const Tensor dx = dpre.mm(in_out(s[3], layout).t()).view(grads[0].sizes());
    return {grads[0], dx, weight_gradient(s[3], s[0], dpre, layout), db1, dw2, db2, Tensor()};
  }
};

class SwigluMlp : public torch::autograd::Function<SwigluMlp> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& residual, const Tensor& x, const Tensor& gate,
                        const Tensor& up, const Tensor& down) {
    const Tensor x2 = dense_matrix(x), both = at::cat({gate, up}), gate_up = x2.mm(both.t());
    ctx->save_for_backward({x2, gate_up, gate, up, down});
    return at::addmm(dense_matrix(residual), cuda::swiglu(gate_up), down.t()).view(residual.sizes());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto s = ctx->get_saved_variables();
    const Tensor dy = dense_matrix(grads[0]);
    Tensor h = dy.mm(s[4]);  // first dh, then overwritten by the forward value
    const Tensor gradient = cuda::swiglu_backward(s[1], h);
    const Tensor ddown = weight_gradient(s[4], h, dy, WeightLayout::kOutIn);
    h.reset();
    const Tensor dx = gradient.mm(at::cat({s[2], s[3]})).view(grads[0].sizes());
    const auto halves = gradient.chunk(2, 1);
    return {grads[0], dx, weight_gradient(s[2], s[0], halves[0], WeightLayout::kOutIn),
            weight_gradient(s[3], s[0], halves[1], WeightLayout::kOutIn), ddown};
  }
};

}  // namespace

bool takes_device_mlp(const Tensor& x) { return cuda::takes(x); }

Tensor device_gelu_mlp(const Tensor& residual, const Tensor& x, const Tensor& w1, const Tensor& b1, const Tensor& w2,
                       const Tensor& b2, WeightLayout layout) {
  return GeluMlp::apply(residual, x, w1, maybe(b1), w2, maybe(b2), static_cast<std::int64_t>(layout));
}

Tensor device_swiglu_mlp(const Tensor& residual, const Tensor& x, const Tensor& gate, const Tensor& up,
                         const Tensor& down) {
  return SwigluMlp::apply(residual, x, gate, up, down);
}

}  // namespace lockstep::nn
