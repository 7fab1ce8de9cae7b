// Rotary position embedding (Su et al. 2021): functional.h's rope and rope_tables.
#include <ATen/Dispatch.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lockstep/kernels/parallel_blocks.h"
#include "lockstep/kernels/rope.h"
#include "lockstep/nn/autograd.h"
#include "lockstep/nn/cuda/operators.h"
#include "lockstep/nn/functional.h"

namespace lockstep::nn {
namespace {

void rotate(const Tensor& x, Tensor& y, const Tensor& cos, const Tensor& sin, int direction) {
  const std::int64_t seq = x.size(1), heads = x.size(2), dim = x.size(3);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "rope", [&] {
    kernels::parallel_blocks(x.size(0) * heads, [&](std::int64_t i) {
      const std::int64_t batch = i / heads, head = i % heads;
      kernels::rope_rotate(x.data_ptr<scalar_t>() + batch * x.stride(0) + head * x.stride(2), x.stride(1),
                           y.data_ptr<scalar_t>() + batch * y.stride(0) + head * y.stride(2), y.stride(1),
                           cos.data_ptr<scalar_t>(), sin.data_ptr<scalar_t>(), direction, seq, dim);
    });
  });
}

class Rope : public torch::autograd::Function<Rope> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& cos, const Tensor& sin) {
    ctx->save_for_backward({cos, sin});
    Tensor y = torch::empty(x.sizes(), x.options());
    rotate(x.stride(3) == 1 ? x : x.contiguous(), y, cos, sin, +1);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor dy = grads[0].stride(3) == 1 ? grads[0] : grads[0].contiguous();
    Tensor dx = torch::empty(dy.sizes(), dy.options());
    rotate(dy, dx, saved[0], saved[1], -1);
    return {dx, Tensor(), Tensor()};
  }
};

class DeviceRope : public torch::autograd::Function<DeviceRope> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& cos, const Tensor& sin) {
    ctx->save_for_backward({cos, sin});
    return cuda::rope(x, cos, sin, /*inverse=*/false);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {cuda::rope(grads[0], saved[0], saved[1], /*inverse=*/true), Tensor(), Tensor()};
  }
};

// The number of the frequency that turns `turns` times in the original context.
double yarn_bound(const spec::RopeScaling& scaling, double turns, std::int64_t dim, double theta) {
  const double context = static_cast<double>(scaling.original_max_sequence);
  return static_cast<double>(dim) * std::log(context / (turns * 2.0 * std::numbers::pi)) / (2.0 * std::log(theta));
}

// YaRN (Peng et al. 2023, 3.2): low frequencies are divided, high ones stay, with a linear passage by their number.
Tensor yarn_frequencies(const Tensor& frequencies, const spec::RopeScaling& scaling, double theta) {
  const std::int64_t dim = 2 * frequencies.size(0);
  double low = yarn_bound(scaling, scaling.beta_fast, dim, theta);
  double high = yarn_bound(scaling, scaling.beta_slow, dim, theta);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  const Tensor divided = ((torch::arange(dim / 2, frequencies.options()) - low) / (high - low)).clamp(0.0, 1.0);
  return frequencies / scaling.factor * divided + frequencies * (1.0 - divided);
}

// Hugging Face's rope_scaling: "linear" divides all frequencies, "llama3" and "yarn" the low ones, with a smooth
// passage between, "longrope" each by its own number.
Tensor scaled_frequencies(const Tensor& frequencies, const spec::RopeScaling& scaling, double theta,
                          std::int64_t sequence) {
  if (scaling.kind == spec::RopeScaling::Kind::kNone) return frequencies;
  if (scaling.kind == spec::RopeScaling::Kind::kLinear) return frequencies / scaling.factor;
  if (scaling.kind == spec::RopeScaling::Kind::kYarn) return yarn_frequencies(frequencies, scaling, theta);
  if (scaling.kind == spec::RopeScaling::Kind::kLongRope) {
    const auto& factors = sequence > scaling.original_max_sequence ? scaling.long_factors : scaling.short_factors;
    return frequencies / torch::tensor(factors, torch::kDouble).to(frequencies.options());
  }
  const auto context = static_cast<double>(scaling.original_max_sequence);
  const Tensor turns = frequencies * (context / (2.0 * std::numbers::pi));  // in the original context
  const Tensor smooth =
      ((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0.0, 1.0);
  return (1.0 - smooth) * frequencies / scaling.factor + smooth * frequencies;
}

}  // namespace

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const std::int64_t rotated = 2 * cos.size(1), rest = x.size(3) - rotated;
  if (rest > 0) return at::cat({rope(x.narrow(3, 0, rotated), cos, sin), x.narrow(3, rotated, rest)}, 3);
  if (has_kernels(x)) return Rope::apply(x, cos, sin);
  if (cuda::takes_rope(x, cos)) return DeviceRope::apply(x, cos, sin);
  const auto halves = x.chunk(2, -1);
  const Tensor c = cos.unsqueeze(1).to(x.scalar_type()), s = sin.unsqueeze(1).to(x.scalar_type());  // [seq, 1, dim / 2]
  return at::cat({halves[0] * c - halves[1] * s, halves[1] * c + halves[0] * s}, -1);
}

RopeTables rope_tables(std::int64_t seq, std::int64_t head_dim, double theta, const spec::RopeScaling& scaling,
                       const torch::TensorOptions& options, const RopeContext& context) {
  // As Hugging Face: frequencies and angles in fp32 (fp64 models: in fp64), whatever the model's dtype.
  const auto dtype = options.dtype() == torch::kDouble ? torch::kDouble : torch::kFloat;
  const auto wide = torch::dtype(dtype).device(options.device());
  const Tensor exponents = torch::arange(0, head_dim, 2, wide) / static_cast<double>(head_dim);
  const std::int64_t whole = context.whole_sequence > 0 ? context.whole_sequence : seq;
  const Tensor frequencies = scaled_frequencies(1.0 / at::pow(theta, exponents), scaling, theta, whole);
  const Tensor angles = at::outer(torch::arange(seq, wide), frequencies);  // [seq, head_dim / 2]
  const double factor = spec::rope_attention_factor(scaling, context.max_sequence);
  return factor == 1.0 ? RopeTables{angles.cos(), angles.sin()}
                       : RopeTables{angles.cos() * factor, angles.sin() * factor};
}

}  // namespace lockstep::nn
