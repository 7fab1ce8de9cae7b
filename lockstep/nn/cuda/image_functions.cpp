#include "lockstep/nn/cuda/image_functions.h"
#include "lockstep/nn/autograd.h"

#include <c10/cuda/CUDAStream.h>

#include <optional>
#include <utility>

#include "lockstep/kernels/cuda/batch_norm.h"
#include "lockstep/kernels/cuda/pooling.h"

namespace lockstep::nn::cuda {
namespace {

namespace kernel = kernels::cuda;
using kernel::Bf16;
using torch::autograd::Function;

constexpr auto kLast = at::MemoryFormat::ChannelsLast;

cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }
Bf16* values(const Tensor& t) { return t.defined() ? static_cast<Bf16*>(t.data_ptr()) : nullptr; }
std::uint8_t* bytes(const Tensor& t) { return static_cast<std::uint8_t*>(t.data_ptr()); }
float* floats(const Tensor& t) { return static_cast<float*>(t.data_ptr()); }
Tensor channels_last(const Tensor& t) { return t.defined() ? t.contiguous(kLast) : t; }
Tensor like(const Tensor& t) { return at::empty(t.sizes(), t.options(), kLast); }
std::int64_t rows_of(const Tensor& x, const Tensor& weight) { return x.numel() / weight.numel(); }

// A layer and the statistics of this batch, [2, channels]: mean and reciprocal deviation.
kernel::BatchNormLayer layer_of(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& statistics) {
  return {values(x), values(weight), values(bias), floats(statistics), floats(statistics) + weight.numel()};
}

// Tickets are zero between uses, so each layer keeps its own and nothing clears them.
kernel::BatchNormScratch scratch_of(const Tensor& sums, const Tensor& tickets) {
  return {floats(sums), static_cast<unsigned*>(tickets.data_ptr())};
}
Tensor new_sums(const Tensor& weight) {
  return at::empty({kernel::batch_norm_scratch_floats(weight.numel())}, weight.options().dtype(torch::kFloat));
}
const Tensor& tickets_of(BatchNorm2d& norm) {
  if (!norm.tickets.defined() || norm.tickets.device() != norm.weight.device()) {
    norm.tickets =
        at::zeros({kernel::batch_norm_tickets(norm.weight.numel())}, norm.weight.options().dtype(torch::kInt));
  }
  return norm.tickets;
}

Tensor compute_statistics(BatchNorm2d& norm, const Tensor& x) {
  Tensor statistics = at::empty({2, norm.weight.numel()}, x.options().dtype(torch::kFloat));
  const Tensor sums = new_sums(norm.weight);
  kernel::BatchNormStatistics a;
  a.layer = layer_of(x, norm.weight, norm.bias, statistics);
  a.running_mean = floats(norm.running_mean), a.running_var = floats(norm.running_var);
  a.batches = static_cast<std::int64_t*>(norm.num_batches_tracked.data_ptr());
  a.momentum = 0.1f, a.epsilon = 1e-5f;
  a.rows = rows_of(x, norm.weight), a.channels = norm.weight.numel();
  a.scratch = scratch_of(sums, tickets_of(norm));
  kernel::batch_norm_statistics(a, stream());
  return statistics;
}

// Gradients of one layer: dx, and [dweight, dbias] side by side; the means pass between the two kernels.
struct LayerGradients {
  Tensor dx, parameters, means;

  LayerGradients(const Tensor& x, const Tensor& weight)
      : dx(like(x)),
        parameters(at::empty({2, weight.numel()}, weight.options())),
        means(at::empty({2, weight.numel()}, weight.options().dtype(torch::kFloat))) {}
  kernel::BatchNormGradients pointers() const {
    const std::int64_t channels = parameters.size(1);
    return {values(dx), values(parameters), values(parameters) + channels, floats(means), floats(means) + channels};
  }
  Tensor dweight() const { return parameters.select(0, 0); }
  Tensor dbias() const { return parameters.select(0, 1); }
};

struct NormRelu : Function<NormRelu> {
  static Tensor forward(AutogradContext* context, const Tensor& input, const Tensor& weight, const Tensor& bias,
                        BatchNorm2d* norm) {
    const Tensor x = channels_last(input), statistics = compute_statistics(*norm, x), y = like(x);
    kernel::BatchNormForward a;
    a.layer = layer_of(x, weight, bias, statistics);
    a.y = values(y), a.rows = rows_of(x, weight), a.channels = x.size(1);
    kernel::batch_norm_forward(a, stream());
    context->save_for_backward({x, weight, bias, statistics, norm->tickets});
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], dy = channels_last(gradients[0]), sums = new_sums(saved[1]);
    const LayerGradients out(x, saved[1]);
    kernel::BatchNormBackward a;
    a.layer = layer_of(x, saved[1], saved[2], saved[3]);
    a.dy = values(dy), a.gradients = out.pointers(), a.rows = rows_of(x, saved[1]), a.channels = x.size(1);
    a.scratch = scratch_of(sums, saved[4]);
    kernel::batch_norm_backward(a, stream());
    return {out.dx, out.dweight(), out.dbias(), Tensor()};
  }
};

// x comes row by row or, with four times the layer's channels, by squares of 2x2 pixels.
struct NormReluPool : Function<NormReluPool> {
  static Tensor forward(AutogradContext* context, const Tensor& input, const Tensor& weight, const Tensor& bias,
                        BatchNorm2d* norm) {
    const Tensor x = channels_last(input), statistics = compute_statistics(*norm, x);
    kernel::PooledNormForward a;
    a.channels = weight.numel(), a.squares = x.size(1) == 4 * a.channels;
    a.images = x.size(0), a.height = x.size(2) * (a.squares ? 2 : 1), a.width = x.size(3) * (a.squares ? 2 : 1);
    const Tensor y = at::empty({a.images, a.channels, kernel::pooled_side(a.height), kernel::pooled_side(a.width)},
                               x.options(), kLast);
    const Tensor chosen = like(y), where = at::empty(y.sizes(), y.options().dtype(torch::kByte), kLast);
    a.layer = layer_of(x, weight, bias, statistics);
    a.y = values(y), a.chosen = values(chosen), a.where = bytes(where);
    kernel::pooled_norm_forward(a, stream());
    context->save_for_backward({x, weight, bias, statistics, norm->tickets, chosen, where});
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], dy = channels_last(gradients[0]), sums = new_sums(saved[1]);
    const LayerGradients out(x, saved[1]);
    kernel::PooledNormBackward a;
    a.layer = layer_of(x, saved[1], saved[2], saved[3]);
    a.dy = values(dy), a.chosen = values(saved[5]), a.where = bytes(saved[6]), a.gradients = out.pointers();
    a.channels = saved[1].numel(), a.squares = x.size(1) == 4 * a.channels;
    a.images = x.size(0), a.height = x.size(2) * (a.squares ? 2 : 1), a.width = x.size(3) * (a.squares ? 2 : 1);
    a.scratch = scratch_of(sums, saved[4]);
    kernel::pooled_norm_backward(a, stream());
    return {out.dx, out.dweight(), out.dbias(), Tensor()};
  }
};

// One layer and what is added to it: a tensor, or a second layer.
struct NormAddRelu : Function<NormAddRelu> {
  static variable_list forward(AutogradContext* context, const Tensor& input, const Tensor& weight, const Tensor& bias,
                               const Tensor& shortcut, const std::optional<Tensor>& other_weight,
                               const std::optional<Tensor>& other_bias, BatchNorm2d* norm, BatchNorm2d* other,
                               bool halve) {
    const Tensor x = channels_last(input), added = channels_last(shortcut), y = like(x);
    const Tensor statistics = compute_statistics(*norm, x);
    const Tensor mask = at::empty({x.numel() / 8}, x.options().dtype(torch::kByte));
    kernel::BatchNormForward a;
    a.layer = layer_of(x, weight, bias, statistics);
    Tensor other_statistics;
    if (other != nullptr) {
      other_statistics = compute_statistics(*other, added);
      a.other = layer_of(added, *other_weight, *other_bias, other_statistics);
    } else {
      a.added = values(added);
    }
    a.y = values(y), a.mask = bytes(mask), a.rows = rows_of(x, weight), a.channels = x.size(1);
    // The second output is the whole tensor again, or every other pixel in both directions.
    const Tensor second =
        halve ? at::empty({x.size(0), x.size(1), x.size(2) / 2, x.size(3) / 2}, x.options(), kLast) : y.detach();
    if (halve) a.even = values(second), a.width = x.size(3);
    kernel::batch_norm_forward(a, stream());
    context->set_materialize_grads(false);
    variable_list saved{x, weight, bias, statistics, norm->tickets, mask};
    if (other != nullptr) saved.insert(saved.end(), {added, *other_weight, *other_bias, other_statistics});
    context->save_for_backward(std::move(saved));
    return {y, second};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], g = like(x), sums = new_sums(saved[1]);
    Tensor dy = channels_last(gradients[0]), more = channels_last(gradients[1]);
    if (!dy.defined() && !more.defined()) return variable_list(9);
    if (!dy.defined()) dy = more.sizes() == x.sizes() ? std::exchange(more, Tensor()) : at::zeros_like(x);
    const LayerGradients out(x, saved[1]);
    kernel::BatchNormAddBackward a;
    a.layer = layer_of(x, saved[1], saved[2], saved[3]);
    a.dy = values(dy), a.more = values(more), a.width = x.size(3);
    a.more_is_even = more.defined() && more.sizes() != x.sizes();
    a.mask = bytes(saved[5]), a.g = values(g);
    a.gradients = out.pointers(), a.rows = rows_of(x, saved[1]), a.channels = x.size(1);
    a.scratch = scratch_of(sums, saved[4]);
    if (saved.size() == 6) {
      kernel::batch_norm_add_backward(a, stream());
      return {out.dx, out.dweight(), out.dbias(), g, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
    }
    const LayerGradients second(saved[6], saved[7]);
    a.other = layer_of(saved[6], saved[7], saved[8], saved[9]);
    a.other_gradients = second.pointers();
    kernel::batch_norm_add_backward(a, stream());
    return {out.dx,         out.dweight(), out.dbias(), second.dx, second.dweight(),
            second.dbias(), Tensor(),      Tensor(),    Tensor()};
  }
};

struct AveragePool : Function<AveragePool> {
  static Tensor forward(AutogradContext* context, const Tensor& input) {
    const Tensor x = channels_last(input), y = at::empty({x.size(0), x.size(1)}, x.options());
    kernel::average_places(values(x), values(y), x.size(0), x.size(2) * x.size(3), x.size(1), stream());
    context->saved_data["sizes"] = x.sizes().vec();
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const std::vector<std::int64_t> sizes = context->saved_data["sizes"].toIntVector();
    const Tensor dy = gradients[0].contiguous(), dx = at::empty(sizes, dy.options(), kLast);
    kernel::average_places_backward(values(dy), values(dx), sizes[0], sizes[2] * sizes[3], sizes[1], stream());
    return {dx};
  }
};

}  // namespace

Tensor norm_relu(BatchNorm2d& norm, const Tensor& x) { return NormRelu::apply(x, norm.weight, norm.bias, &norm); }

Tensor norm_relu_pool(BatchNorm2d& norm, const Tensor& x) {
  return NormReluPool::apply(x, norm.weight, norm.bias, &norm);
}

BlockOutput norm_add_relu(BatchNorm2d& norm, const Tensor& x, BatchNorm2d* shortcut_norm, const Tensor& shortcut,
                          std::int64_t stride) {
  std::optional<Tensor> weight, bias;
  if (shortcut_norm != nullptr) weight = shortcut_norm->weight, bias = shortcut_norm->bias;
  const variable_list y = NormAddRelu::apply(x, norm.weight, norm.bias, shortcut, weight, bias, &norm, shortcut_norm,
                                             stride == 2 && x.size(2) % 2 == 0 && x.size(3) % 2 == 0);
  return {y[0], y[1]};
}

Tensor average_pool(const Tensor& x) { return AveragePool::apply(x); }

}  // namespace lockstep::nn::cuda
