#include "lockstep/nn/selective_scan.h"
#include "lockstep/nn/autograd.h"

#include <ATen/Dispatch.h>

#include <algorithm>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/kernels/causal_conv.h"
#include "lockstep/kernels/selective_scan.h"

namespace lockstep::nn {
namespace {

using kernels::kScanChunk;

struct Operands {
  Tensor x, dt, a, b, c, d;
};

struct Forward {
  Tensor y;
  Tensor checkpoints;  // [batch, chunks, channels, state]: the state before each chunk
  Tensor final_state;
};

struct Gradients {
  Tensor x, dt, a, b, c, d, initial_state;
};

// parts [n, ...] -> their sum, always in the same order.
Tensor add_in_order(const Tensor& parts) {
  if (parts.size(0) == 1) return parts[0];
  Tensor total = parts[0].clone();
  for (std::int64_t i = 1; i < parts.size(0); ++i) total.add_(parts[i]);
  return total;
}

kernels::ScanShape shape_of(const Operands& in) { return {in.x.size(0), in.x.size(1), in.x.size(2), in.a.size(1)}; }

template <typename T>
kernels::ScanInput<T> pointers(const Operands& in) {
  return {in.x.data_ptr<T>(), in.dt.data_ptr<T>(), in.a.data_ptr<T>(),
          in.b.data_ptr<T>(), in.c.data_ptr<T>(),  in.d.data_ptr<T>()};
}

Forward forward_by_kernel(const Operands& in, const Tensor& initial_state) {
  const kernels::ScanShape shape = shape_of(in);
  Forward out{torch::empty_like(in.x),
              torch::empty({shape.batch, shape.chunks(), shape.channels, shape.state}, in.x.options()),
              torch::empty_like(initial_state)};
  AT_DISPATCH_FLOATING_TYPES(in.x.scalar_type(), "selective_scan", [&] {
    kernels::selective_scan_forward(
        shape, pointers<scalar_t>(in), initial_state.data_ptr<scalar_t>(),
        {out.y.data_ptr<scalar_t>(), out.checkpoints.data_ptr<scalar_t>(), out.final_state.data_ptr<scalar_t>()});
  });
  return out;
}

Gradients backward_by_kernel(const Operands& in, const Tensor& checkpoints, const Tensor& dy, const Tensor& dfinal) {
  const kernels::ScanShape shape = shape_of(in);
  const auto empty = [&](at::IntArrayRef sizes) { return torch::empty(sizes, in.x.options()); };
  const auto zeros = [&](at::IntArrayRef sizes) { return torch::zeros(sizes, in.x.options()); };
  Gradients parts{empty(in.x.sizes()),
                  empty(in.x.sizes()),
                  empty({shape.batch, shape.channels, shape.state}),
                  zeros({shape.groups(), shape.batch, shape.seq, shape.state}),
                  zeros({shape.groups(), shape.batch, shape.seq, shape.state}),
                  empty({shape.batch, shape.channels}),
                  empty({shape.batch, shape.channels, shape.state})};
  AT_DISPATCH_FLOATING_TYPES(in.x.scalar_type(), "selective_scan_backward", [&] {
    kernels::selective_scan_backward(
        shape, pointers<scalar_t>(in), checkpoints.data_ptr<scalar_t>(), dy.data_ptr<scalar_t>(),
        dfinal.data_ptr<scalar_t>(),
        {parts.x.data_ptr<scalar_t>(), parts.dt.data_ptr<scalar_t>(), parts.a.data_ptr<scalar_t>(),
         parts.b.data_ptr<scalar_t>(), parts.c.data_ptr<scalar_t>(), parts.d.data_ptr<scalar_t>(),
         parts.initial_state.data_ptr<scalar_t>()});
  });
  return {parts.x,
          parts.dt,
          add_in_order(parts.a),
          add_in_order(parts.b),
          add_in_order(parts.c),
          add_in_order(parts.d),
          parts.initial_state};
}

// v_t <- v_t + factor_t v_{t-1} with the v_{t-1} already updated, for all t of dim 1 in log2 rounds; factor_t becomes
// the product of the factors up to t.
void scan_in_place(Tensor factor, Tensor v) {
  const std::int64_t steps = v.size(1);
  for (std::int64_t distance = 1; distance < steps; distance *= 2) {
    const std::int64_t count = steps - distance;
    Tensor later = factor.narrow(1, distance, count);
    const Tensor addend = later * v.narrow(1, 0, count);
    const Tensor product = later * factor.narrow(1, 0, count);
    v.narrow(1, distance, count).add_(addend);
    later.copy_(product);
  }
}

Operands steps_of(const Operands& in, std::int64_t chunk) {
  const std::int64_t first = chunk * kScanChunk;
  const std::int64_t count = std::min(kScanChunk, in.x.size(1) - first);
  const auto rows = [&](const Tensor& t) { return t.narrow(1, first, count); };
  return {rows(in.x), rows(in.dt), in.a, rows(in.b), rows(in.c), in.d};
}

// exp(dt A), [batch, steps, channels, state].
Tensor factors_of(const Operands& steps) { return (steps.dt.unsqueeze(-1) * steps.a).exp_(); }

// States after each of these steps, [batch, steps, channels, state].
Tensor states_of(const Operands& steps, const Tensor& before) {
  Tensor h = (steps.dt * steps.x).unsqueeze(-1) * steps.b.unsqueeze(2);
  Tensor factor = factors_of(steps);
  scan_in_place(factor, h);
  return h.add_(factor.mul_(before.unsqueeze(1)));
}

Forward forward_by_aten(const Operands& in, const Tensor& initial_state) {
  std::vector<Tensor> y, checkpoints;
  Tensor state = initial_state;
  for (std::int64_t chunk = 0; chunk < shape_of(in).chunks(); ++chunk) {
    const Operands steps = steps_of(in, chunk);
    const Tensor h = states_of(steps, state);
    y.push_back(at::matmul(h, steps.c.unsqueeze(-1)).squeeze(-1) + steps.d * steps.x);
    checkpoints.push_back(state);
    state = h.select(1, h.size(1) - 1).clone();  // a view would keep the whole chunk
  }
  return {at::cat(y, 1), at::stack(checkpoints, 1), state.clone()};
}

// Gradients of the states after each step: dh_t = C_t dy_t + exp(dt_{t+1} A) dh_{t+1}, a scan from the end.
// `after` is the last term of the last step.
Tensor state_gradients(const Operands& steps, const Tensor& factor, const Tensor& dy, const Tensor& after) {
  Tensor backwards = (steps.c.unsqueeze(2) * dy.unsqueeze(-1)).flip(1);
  backwards.select(1, 0).add_(after);
  const Tensor none = torch::zeros_like(factor.narrow(1, 0, 1));
  scan_in_place(at::cat({none, factor.narrow(1, 1, factor.size(1) - 1).flip(1)}, 1), backwards);
  return backwards.flip(1);
}

Gradients backward_by_aten(const Operands& in, const Tensor& checkpoints, const Tensor& dy, const Tensor& dfinal) {
  const std::int64_t chunks = checkpoints.size(1);
  Gradients total{torch::empty_like(in.x),
                  torch::empty_like(in.x),
                  torch::zeros_like(in.a),
                  torch::empty_like(in.b),
                  torch::empty_like(in.b),
                  torch::zeros_like(in.d),
                  dfinal};
  for (std::int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
    const Operands steps = steps_of(in, chunk);
    const std::int64_t first = chunk * kScanChunk, count = steps.x.size(1);
    const auto put = [&](Tensor& whole, const Tensor& rows) { whole.narrow(1, first, count).copy_(rows); };
    const Tensor start = checkpoints.select(1, chunk);
    const Tensor h = states_of(steps, start);
    const Tensor before = at::cat({start.unsqueeze(1), h.narrow(1, 0, count - 1)}, 1);
    const Tensor factor = factors_of(steps), dy_steps = dy.narrow(1, first, count);
    const Tensor dh = state_gradients(steps, factor, dy_steps, total.initial_state);
    const Tensor carried = dh * factor, dexponent = carried * before;
    const Tensor du = at::matmul(dh, steps.b.unsqueeze(-1)).squeeze(-1);  // of u = dt x
    put(total.x, du * steps.dt + steps.d * dy_steps);
    put(total.dt, du * steps.x + (dexponent * steps.a).sum(-1));
    put(total.b, at::matmul((steps.dt * steps.x).unsqueeze(2), dh).squeeze(2));
    put(total.c, at::matmul(dy_steps.unsqueeze(2), h).squeeze(2));
    total.a.add_((dexponent * steps.dt.unsqueeze(-1)).sum(at::IntArrayRef{0, 1}));
    total.d.add_((dy_steps * steps.x).sum(at::IntArrayRef{0, 1}));
    total.initial_state = carried.select(1, 0).clone();
  }
  return total;
}

class SelectiveScan : public torch::autograd::Function<SelectiveScan> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& dt, const Tensor& a,
                               const Tensor& b, const Tensor& c, const Tensor& d, const Tensor& initial_state,
                               bool by_aten) {
    const Operands in{x.contiguous(), dt.contiguous(), a.contiguous(), b.contiguous(), c.contiguous(), d.contiguous()};
    const Tensor start = initial_state.contiguous();
    const Forward out = by_aten ? forward_by_aten(in, start) : forward_by_kernel(in, start);
    ctx->save_for_backward({in.x, in.dt, in.a, in.b, in.c, in.d, out.checkpoints});
    ctx->saved_data["by_aten"] = by_aten;
    return {out.y, out.final_state};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Operands in{saved[0], saved[1], saved[2], saved[3], saved[4], saved[5]};
    const Tensor dy = grads[0].contiguous(), dfinal = grads[1].contiguous();
    const Gradients g = ctx->saved_data["by_aten"].toBool() ? backward_by_aten(in, saved[6], dy, dfinal)
                                                            : backward_by_kernel(in, saved[6], dy, dfinal);
    return {g.x, g.dt, g.a, g.b, g.c, g.d, g.initial_state, Tensor()};
  }
};

class CausalConvSilu : public torch::autograd::Function<CausalConvSilu> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, const Tensor& bias) {
    const Tensor rows = x.contiguous(), taps = weight.squeeze(1).t().contiguous();  // [taps, channels]
    const kernels::ConvShape shape = shape_of(rows, taps);
    Tensor y = torch::empty({shape.batch, shape.seq, shape.channels}, x.options());
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "causal_conv_silu", [&] {
      kernels::causal_conv_silu_forward(shape, rows.data_ptr<scalar_t>(), taps.data_ptr<scalar_t>(),
                                        bias.data_ptr<scalar_t>(), y.data_ptr<scalar_t>());
    });
    ctx->save_for_backward({rows, taps, bias});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &rows = saved[0], &taps = saved[1], &bias = saved[2], dy = grads[0].contiguous();
    const kernels::ConvShape shape = shape_of(rows, taps);
    Tensor dx = torch::zeros_like(rows);
    Tensor dtaps = torch::zeros({shape.batch, shape.taps, shape.channels}, rows.options());
    Tensor dbias = torch::zeros({shape.batch, shape.channels}, rows.options());
    AT_DISPATCH_FLOATING_TYPES(rows.scalar_type(), "causal_conv_silu_backward", [&] {
      kernels::causal_conv_silu_backward(shape, rows.data_ptr<scalar_t>(), taps.data_ptr<scalar_t>(),
                                         bias.data_ptr<scalar_t>(), dy.data_ptr<scalar_t>(), dx.data_ptr<scalar_t>(),
                                         dtaps.data_ptr<scalar_t>(), dbias.data_ptr<scalar_t>());
    });
    return {dx, add_in_order(dtaps).t().unsqueeze(1), add_in_order(dbias)};
  }

 private:
  static kernels::ConvShape shape_of(const Tensor& rows, const Tensor& taps) {
    return {rows.size(0), rows.size(1) - taps.size(0) + 1, rows.size(2), taps.size(0)};
  }
};

torch::Dtype wide_of(const Tensor& x) { return x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat; }

ScanResult scan(const Tensor& x, const Tensor& dt, const Tensor& A, const Tensor& B, const Tensor& C, const Tensor& D,
                const Tensor& initial_state, bool by_aten) {
  LOCKSTEP_ASSERT(x.dim() == 3 && x.sizes() == dt.sizes() && B.sizes() == C.sizes(), "shapes of a scan fit together");
  const auto wide = wide_of(x);
  const auto out = SelectiveScan::apply(x.to(wide), dt.to(wide), A.to(wide), B.to(wide), C.to(wide), D.to(wide),
                                        initial_state.to(wide), by_aten);
  return {out[0].to(x.scalar_type()), out[1].to(initial_state.scalar_type())};
}

}  // namespace

ScanResult selective_scan(const Tensor& x, const Tensor& dt, const Tensor& A, const Tensor& B, const Tensor& C,
                          const Tensor& D, const Tensor& initial_state) {
  return scan(x, dt, A, B, C, D, initial_state, /*by_aten=*/!x.is_cpu());
}

ScanResult selective_scan_by_aten(const Tensor& x, const Tensor& dt, const Tensor& A, const Tensor& B, const Tensor& C,
                                  const Tensor& D, const Tensor& initial_state) {
  return scan(x, dt, A, B, C, D, initial_state, /*by_aten=*/true);
}

Tensor causal_conv_silu(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (!x.is_cpu()) {
    const Tensor sums =
        at::conv1d(x.transpose(1, 2), weight, bias, /*stride=*/1, /*padding=*/at::IntArrayRef{0}, /*dilation=*/1,
                   /*groups=*/x.size(2));
    return at::silu(sums).transpose(1, 2);
  }
  const auto wide = wide_of(x);
  return CausalConvSilu::apply(x.to(wide), weight.to(wide), bias.to(wide)).to(x.scalar_type());
}

}  // namespace lockstep::nn
