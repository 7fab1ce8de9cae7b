#include "lockstep/nn/functional.h"

#include <ATen/Dispatch.h>

#include <algorithm>
#include <vector>

#include "lockstep/kernels/bias_gelu.h"
#include "lockstep/kernels/parallel_blocks.h"
#include "lockstep/kernels/rms_norm.h"
#include "lockstep/kernels/swiglu.h"
#include "lockstep/nn/autograd.h"
#include "lockstep/nn/cuda/operators.h"
#include "lockstep/nn/deferred_gradients.h"
#include "lockstep/nn/device_mlp.h"
#include "lockstep/nn/torch_compat.h"

namespace lockstep::nn {
namespace {

template <typename T>
T* pointer(const Tensor& t) {
  return t.defined() ? t.data_ptr<T>() : nullptr;
}

// Gradient of a bias from dy [rows, out].
Tensor bias_gradient(const Tensor& dy) { return cuda::takes(dy) ? cuda::column_sums(dy.contiguous()) : dy.sum(0); }

// Rows cut into at most kSumBlocks blocks. Each block sums columns on its own and the sums are added in order, so a
// column sum does not depend on the number of threads.
constexpr std::int64_t kSumBlocks = 16;

struct RowBlocks {
  std::int64_t rows;
  std::int64_t per_block;
  std::int64_t count;

  explicit RowBlocks(std::int64_t rows_)
      : rows(rows_),
        per_block(std::max<std::int64_t>(1, (rows_ + kSumBlocks - 1) / kSumBlocks)),
        count((rows_ + per_block - 1) / per_block) {}
  std::int64_t begin(std::int64_t block) const { return block * per_block; }
  std::int64_t size(std::int64_t block) const { return std::min(per_block, rows - begin(block)); }
};

Tensor gelu_forward(const Tensor& x, const Tensor& bias) {
  Tensor y = torch::empty_like(x);
  const std::int64_t cols = x.size(1);
  const RowBlocks blocks(x.size(0));
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "bias_gelu", [&] {
    kernels::parallel_blocks(blocks.count, [&](std::int64_t b) {
      const std::int64_t at = blocks.begin(b) * cols;
      kernels::bias_gelu_forward(x.data_ptr<scalar_t>() + at, pointer<scalar_t>(bias), y.data_ptr<scalar_t>() + at,
                                 blocks.size(b), cols);
    });
  });
  return y;
}

// Writes dx and, where defined, the forward value y; returns the bias gradient (undefined without a bias). dx may be
// dy.
Tensor gelu_backward(const Tensor& x, const Tensor& bias, const Tensor& dy, Tensor& dx, const Tensor& y) {
  const std::int64_t cols = x.size(1);
  const RowBlocks blocks(x.size(0));
  Tensor partial = bias.defined() ? torch::zeros({blocks.count, cols}, x.options()) : Tensor();
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "bias_gelu_backward", [&] {
    kernels::parallel_blocks(blocks.count, [&](std::int64_t b) {
      const std::int64_t at = blocks.begin(b) * cols;
      scalar_t* value = pointer<scalar_t>(y);
      scalar_t* sums = pointer<scalar_t>(partial);
      kernels::bias_gelu_backward(x.data_ptr<scalar_t>() + at, pointer<scalar_t>(bias), dy.data_ptr<scalar_t>() + at,
                                  dx.data_ptr<scalar_t>() + at, value ? value + at : nullptr,
                                  sums ? sums + b * cols : nullptr, blocks.size(b), cols);
    });
  });
  return bias.defined() ? partial.sum(0) : Tensor();
}

Tensor swiglu_value(const Tensor& gate, const Tensor& up) {
  Tensor h = torch::empty_like(gate);
  const RowBlocks blocks(gate.numel());
  AT_DISPATCH_FLOATING_TYPES(gate.scalar_type(), "swiglu", [&] {
    kernels::parallel_blocks(blocks.count, [&](std::int64_t b) {
      const std::int64_t at = blocks.begin(b);
      kernels::swiglu_forward(gate.data_ptr<scalar_t>() + at, up.data_ptr<scalar_t>() + at, h.data_ptr<scalar_t>() + at,
                              blocks.size(b));
    });
  });
  return h;
}

// h, where defined, gets the forward value; it may be dh.
void swiglu_gradient(const Tensor& gate, const Tensor& up, const Tensor& dh, Tensor& dgate, Tensor& dup,
                     const Tensor& h) {
  const RowBlocks blocks(gate.numel());
  AT_DISPATCH_FLOATING_TYPES(gate.scalar_type(), "swiglu_backward", [&] {
    kernels::parallel_blocks(blocks.count, [&](std::int64_t b) {
      const std::int64_t at = blocks.begin(b);
      scalar_t* value = pointer<scalar_t>(h);
      kernels::swiglu_backward(gate.data_ptr<scalar_t>() + at, up.data_ptr<scalar_t>() + at,
                               dh.data_ptr<scalar_t>() + at, dgate.data_ptr<scalar_t>() + at,
                               dup.data_ptr<scalar_t>() + at, value ? value + at : nullptr, blocks.size(b));
    });
  });
}

class Product : public torch::autograd::Function<Product> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, const MaybeTensor& maybe_bias,
                        std::int64_t layout) {
    const Tensor bias = given(maybe_bias);
    const Tensor x2 = as_matrix(x);
    const Tensor matrix = in_out(weight, static_cast<WeightLayout>(layout));
    ctx->save_for_backward({x2, weight});
    ctx->saved_data["layout"] = layout;
    ctx->saved_data["shape"] = x.sizes();
    ctx->saved_data["bias"] = bias.defined();
    std::vector<std::int64_t> shape = x.sizes().vec();
    shape.back() = matrix.size(1);
    return (bias.defined() ? at::addmm(bias, x2, matrix) : at::mm(x2, matrix)).view(shape);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto layout = static_cast<WeightLayout>(ctx->saved_data["layout"].toInt());
    const Tensor dy = as_matrix(grads[0]);
    Tensor dx;
    if (ctx->needs_input_grad(0)) {
      dx = dy.mm(in_out(saved[1], layout).t()).view(ctx->saved_data["shape"].toIntVector());
    }
    const Tensor dbias = ctx->saved_data["bias"].toBool() ? bias_gradient(dy) : Tensor();
    return {dx, weight_gradient(saved[1], saved[0], dy, layout), dbias, Tensor()};
  }
};

class LinearResidual : public torch::autograd::Function<LinearResidual> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& residual, const Tensor& x, const Tensor& weight,
                        const MaybeTensor& maybe_bias, std::int64_t layout) {
    const Tensor bias = given(maybe_bias);
    const Tensor x2 = as_matrix(x);
    const Tensor start = as_matrix(residual);
    ctx->save_for_backward({x2, weight});
    ctx->saved_data["layout"] = layout;
    ctx->saved_data["shape"] = x.sizes();
    ctx->saved_data["bias"] = bias.defined();
    Tensor out = bias.defined() ? start + bias : start.clone();
    out.addmm_(x2, in_out(weight, static_cast<WeightLayout>(layout)));
    return out.view(residual.sizes());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto layout = static_cast<WeightLayout>(ctx->saved_data["layout"].toInt());
    const Tensor dy = as_matrix(grads[0]);
    const Tensor dx = dy.mm(in_out(saved[1], layout).t()).view(ctx->saved_data["shape"].toIntVector());
    const Tensor dbias = ctx->saved_data["bias"].toBool() ? bias_gradient(dy) : Tensor();
    return {grads[0], dx, weight_gradient(saved[1], saved[0], dy, layout), dbias, Tensor()};
  }
};

class BiasGelu : public torch::autograd::Function<BiasGelu> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const MaybeTensor& maybe_bias) {
    const Tensor bias = given(maybe_bias);
    const Tensor x2 = as_matrix(x).contiguous();
    ctx->save_for_backward({x2, bias});
    return gelu_forward(x2, bias).view(x.sizes());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    Tensor dx = torch::empty_like(saved[0]);
    const Tensor dbias = gelu_backward(saved[0], saved[1], as_matrix(grads[0]).contiguous(), dx, Tensor());
    return {dx.view(grads[0].sizes()), dbias};
  }
};

// Both forms on CUDA.
class DeviceGelu : public torch::autograd::Function<DeviceGelu> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const MaybeTensor& maybe_bias, bool tanh_form) {
    const Tensor x2 = as_matrix(x).contiguous();
    ctx->save_for_backward({x2, given(maybe_bias)});
    ctx->saved_data["tanh"] = tanh_form;
    return cuda::gelu(x2, given(maybe_bias), kind(tanh_form)).view(x.sizes());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    Tensor dx = as_matrix(grads[0]).clone(torch::MemoryFormat::Contiguous);
    const Tensor dbias = cuda::gelu_backward(saved[0], saved[1], dx, kind(ctx->saved_data["tanh"].toBool()));
    return {dx.view(grads[0].sizes()), dbias, Tensor()};
  }

 private:
  static cuda::Gelu kind(bool tanh_form) { return tanh_form ? cuda::Gelu::kTanh : cuda::Gelu::kErf; }
};

class Swiglu : public torch::autograd::Function<Swiglu> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& gate_any, const Tensor& up_any) {
    const Tensor gate = gate_any.contiguous(), up = up_any.contiguous();
    ctx->save_for_backward({gate, up});
    return swiglu_value(gate, up);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    Tensor dgate = torch::empty_like(saved[0]), dup = torch::empty_like(saved[1]);
    swiglu_gradient(saved[0], saved[1], grads[0].contiguous(), dgate, dup, Tensor());
    return {dgate, dup};
  }
};

Tensor activation_value(const Tensor& x, spec::Activation activation) {
  switch (activation) {
    case spec::Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case spec::Activation::kGelu:
      return at::gelu(x);
    case spec::Activation::kRelu:
      return at::relu(x);
    case spec::Activation::kSilu:
      return at::silu(x);
  }
  return x;
}

Tensor activation_gradient(const Tensor& x, const Tensor& dy, spec::Activation activation) {
  switch (activation) {
    case spec::Activation::kGeluTanh:
      return at::gelu_backward(dy, x, "tanh");
    case spec::Activation::kGelu:
      return at::gelu_backward(dy, x);
    case spec::Activation::kRelu:
      return at::threshold_backward(dy, x, 0);
    case spec::Activation::kSilu:
      return at::silu_backward(dy, x);
  }
  return dy;
}

class Gated : public torch::autograd::Function<Gated> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& gate, const Tensor& up, std::int64_t activation) {
    ctx->save_for_backward({gate, up});
    ctx->saved_data["activation"] = activation;
    return activation_value(gate, static_cast<spec::Activation>(activation)) * up;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto activation = static_cast<spec::Activation>(ctx->saved_data["activation"].toInt());
    const Tensor dup = grads[0] * activation_value(saved[0], activation);
    return {activation_gradient(saved[0], grads[0] * saved[1], activation), dup, Tensor()};
  }
};

// The inner activations are computed again from the pre-activations in backward, in the pass that needs them anyway:
// one [tokens, ffn] tensor less is kept per layer.
class GeluMlp : public torch::autograd::Function<GeluMlp> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& residual, const Tensor& x, const Tensor& w1,
                        const MaybeTensor& maybe_b1, const Tensor& w2, const MaybeTensor& maybe_b2,
                        std::int64_t layout_number) {
    const Tensor b1 = given(maybe_b1), b2 = given(maybe_b2);
    const auto layout = static_cast<WeightLayout>(layout_number);
    const Tensor x2 = as_matrix(x);
    const Tensor pre = x2.mm(in_out(w1, layout));
    ctx->save_for_backward({x2, pre, w1, b1, w2});
    ctx->saved_data["layout"] = layout_number;
    ctx->saved_data["bias"] = b2.defined();
    const Tensor start = as_matrix(residual);
    Tensor out = b2.defined() ? start + b2 : start.clone();
    out.addmm_(gelu_forward(pre, b1), in_out(w2, layout));
    return out.view(residual.sizes());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &pre = saved[1], &w1 = saved[2], &b1 = saved[3], &w2 = saved[4];
    const auto layout = static_cast<WeightLayout>(ctx->saved_data["layout"].toInt());
    const Tensor dy = as_matrix(grads[0]).contiguous();
    Tensor dpre = dy.mm(in_out(w2, layout).t());
    Tensor h = torch::empty_like(pre);
    const Tensor db1 = gelu_backward(pre, b1, dpre, dpre, h);
    const Tensor dw2 = weight_gradient(w2, h, dy, layout);
    h.reset();
    const Tensor db2 = ctx->saved_data["bias"].toBool() ? bias_gradient(dy) : Tensor();
    const Tensor dx = dpre.mm(in_out(w1, layout).t()).view(grads[0].sizes());
    return {grads[0], dx, weight_gradient(w1, x, dpre, layout), db1, dw2, db2, Tensor()};
  }
};

class SwigluMlp : public torch::autograd::Function<SwigluMlp> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& residual, const Tensor& x, const Tensor& gate_weight,
                        const Tensor& up_weight, const Tensor& down_weight) {
    const Tensor x2 = as_matrix(x);
    const Tensor gate = x2.mm(gate_weight.t()), up = x2.mm(up_weight.t());
    ctx->save_for_backward({x2, gate, up, gate_weight, up_weight, down_weight});
    Tensor out = at::addmm(as_matrix(residual), swiglu_value(gate, up), down_weight.t());
    return out.view(residual.sizes());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &gate = saved[1], &up = saved[2];
    const Tensor dy = as_matrix(grads[0]).contiguous();
    Tensor h = dy.mm(saved[5]);  // first dh, then overwritten by the forward value
    Tensor dgate = torch::empty_like(gate), dup = torch::empty_like(up);
    swiglu_gradient(gate, up, h, dgate, dup, h);
    const auto layout = WeightLayout::kOutIn;
    const Tensor ddown = weight_gradient(saved[5], h, dy, layout);
    h.reset();
    Tensor dx = dgate.mm(saved[3]);
    dx.addmm_(dup, saved[4]);
    return {grads[0], dx.view(grads[0].sizes()), weight_gradient(saved[3], x, dgate, layout),
            weight_gradient(saved[4], x, dup, layout), ddown};
  }
};

class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, double epsilon) {
    const Tensor x2 = as_matrix(x).contiguous();
    Tensor y = torch::empty_like(x2);
    Tensor rstd = torch::empty({x2.size(0)}, x2.options());
    const std::int64_t cols = x2.size(1);
    const RowBlocks blocks(x2.size(0));
    AT_DISPATCH_FLOATING_TYPES(x2.scalar_type(), "rms_norm", [&] {
      kernels::parallel_blocks(blocks.count, [&](std::int64_t b) {
        const std::int64_t row = blocks.begin(b);
        kernels::rms_norm_forward(x2.data_ptr<scalar_t>() + row * cols, weight.data_ptr<scalar_t>(),
                                  y.data_ptr<scalar_t>() + row * cols, rstd.data_ptr<scalar_t>() + row, epsilon,
                                  blocks.size(b), cols);
      });
    });
    ctx->save_for_backward({x2, weight, rstd});
    return y.view(x.sizes());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &rstd = saved[2];
    const Tensor dy = as_matrix(grads[0]).contiguous();
    const std::int64_t cols = x.size(1);
    const RowBlocks blocks(x.size(0));
    Tensor dx = torch::empty_like(x);
    Tensor partial = torch::zeros({blocks.count, cols}, x.options());
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "rms_norm_backward", [&] {
      kernels::parallel_blocks(blocks.count, [&](std::int64_t b) {
        const std::int64_t row = blocks.begin(b);
        kernels::rms_norm_backward(x.data_ptr<scalar_t>() + row * cols, weight.data_ptr<scalar_t>(),
                                   rstd.data_ptr<scalar_t>() + row, dy.data_ptr<scalar_t>() + row * cols,
                                   dx.data_ptr<scalar_t>() + row * cols, partial.data_ptr<scalar_t>() + b * cols,
                                   blocks.size(b), cols);
      });
    });
    return {dx.view(grads[0].sizes()), partial.sum(0), Tensor()};
  }
};

// x times the mask of [samples, ...].
Tensor dropped(const Tensor& x, double probability, const DropoutSite& site, const Tensor& positions) {
  if (!cuda::takes_dropout(x)) return dropout_multipliers(x.sizes(), x.options(), probability, site, positions).mul_(x);
  const Tensor numbers = positions.defined() ? positions.to(x.device()).contiguous() : Tensor();
  return cuda::dropout(x.contiguous(), {}, {}, {probability, site, numbers, x.numel() / x.size(0) / x.size(-1)});
}

class Dropout : public torch::autograd::Function<Dropout> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, double probability, const DropoutSite& site,
                        const MaybeTensor& positions) {
    ctx->saved_data["probability"] = probability;
    ctx->saved_data["seed"] = static_cast<std::int64_t>(site.seed);
    ctx->saved_data["step"] = site.step;
    ctx->saved_data["first_index"] = site.first_index;
    ctx->saved_data["layer"] = static_cast<std::int64_t>(site.layer);
    ctx->save_for_backward({given(positions)});
    return dropped(x, probability, site, given(positions));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const DropoutSite site{static_cast<std::uint64_t>(ctx->saved_data["seed"].toInt()), ctx->saved_data["step"].toInt(),
                           ctx->saved_data["first_index"].toInt(),
                           static_cast<std::uint32_t>(ctx->saved_data["layer"].toInt())};
    const double probability = ctx->saved_data["probability"].toDouble();
    return {dropped(grads[0], probability, site, ctx->get_saved_variables()[0]), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, WeightLayout layout) {
  return Product::apply(x, weight, maybe(bias), static_cast<std::int64_t>(layout));
}

Tensor linear_residual(const Tensor& residual, const Tensor& x, const Tensor& weight, const Tensor& bias,
                       WeightLayout layout) {
  return LinearResidual::apply(residual, x, weight, maybe(bias), static_cast<std::int64_t>(layout));
}

Tensor bias_gelu(const Tensor& x, const Tensor& bias) {
  if (cuda::takes(x)) return DeviceGelu::apply(x, maybe(bias), /*tanh_form=*/true);
  if (!has_kernels(x)) return at::gelu(bias.defined() ? x + bias : x, "tanh");
  return BiasGelu::apply(x, maybe(bias));
}

Tensor bias_gelu_erf(const Tensor& x, const Tensor& bias) {
  if (cuda::takes(x)) return DeviceGelu::apply(x, maybe(bias), /*tanh_form=*/false);
  return at::gelu(bias.defined() ? x + bias : x);
}

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  return has_kernels(gate) ? Swiglu::apply(gate, up) : at::silu(gate) * up;
}

Tensor gated(const Tensor& gate, const Tensor& up, spec::Activation activation) {
  if (activation == spec::Activation::kSilu) return swiglu(gate, up);
  return Gated::apply(gate, up, static_cast<std::int64_t>(activation));
}

Tensor soft_capped(const Tensor& x, double cap) { return at::tanh(x / cap) * cap; }

Tensor gelu_mlp(const Tensor& residual, const Tensor& x, const Tensor& w1, const Tensor& b1, const Tensor& w2,
                const Tensor& b2, WeightLayout layout) {
  if (has_kernels(x))
    return GeluMlp::apply(residual, x, w1, maybe(b1), w2, maybe(b2), static_cast<std::int64_t>(layout));
  if (takes_device_mlp(x) && in_out(w1, layout).size(1) % 8 == 0) {
    return device_gelu_mlp(residual, x, w1, b1, w2, b2, layout);
  }
  return linear_residual(residual, bias_gelu(linear(x, w1, Tensor(), layout), b1), w2, b2, layout);
}

Tensor swiglu_mlp(const Tensor& residual, const Tensor& x, const Tensor& gate, const Tensor& up, const Tensor& down) {
  if (has_kernels(x)) return SwigluMlp::apply(residual, x, gate, up, down);
  if (takes_device_mlp(x) && gate.size(0) % 8 == 0) return device_swiglu_mlp(residual, x, gate, up, down);
  const auto layout = WeightLayout::kOutIn;
  return linear_residual(residual, swiglu(linear(x, gate, Tensor(), layout), linear(x, up, Tensor(), layout)), down,
                         Tensor(), layout);
}

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon) {
  return at::layer_norm(x, {x.size(-1)}, weight, bias, epsilon);
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double epsilon) {
  return has_kernels(x) ? RmsNormFunction::apply(x, weight, epsilon) : compat::rms_norm(x, weight, epsilon);
}

Tensor dropout(const Tensor& x, double probability, const DropoutSite& site) {
  return dropout(x, probability, site, Tensor());
}

Tensor dropout(const Tensor& x, double probability, const DropoutSite& site, const Tensor& positions) {
  return probability > 0 && x.numel() > 0 ? Dropout::apply(x, probability, site, maybe(positions)) : x;
}

}  // namespace lockstep::nn
