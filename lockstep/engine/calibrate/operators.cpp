#include "lockstep/engine/calibrate/operators.h"

#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <tuple>

#include "lockstep/cost/states.h"
#include "lockstep/engine/precision.h"
#include "lockstep/kernels/cross_entropy.h"
#include "lockstep/kernels/fused_optimizer.h"
#include "lockstep/kernels/parallel_blocks.h"
#include "lockstep/nn/attention.h"
#include "lockstep/nn/functional.h"

namespace lockstep::engine {
namespace {

using cost::MatmulKind;
using cost::Operator;
using cost::PointwiseKernel;
using torch::Tensor;

// Operands that together outgrow the caches a rank can count on, visited in turn: in training, too, the operands of a
// product were last touched a layer ago.
constexpr std::int64_t kRotatedBytes = 8 << 20;
constexpr std::int64_t kRotatedBytesOnDevice = 256 << 20;

class Rotation {
 public:
  Rotation(std::int64_t bytes_per_set, torch::Device device) {
    const std::int64_t rotated = device.is_cpu() ? kRotatedBytes : kRotatedBytesOnDevice;
    count_ = std::clamp<std::int64_t>(rotated / std::max<std::int64_t>(bytes_per_set, 1), 1, 8);
  }
  std::int64_t count() const { return count_; }
  std::size_t next() { return static_cast<std::size_t>(turn_++ % count_); }

 private:
  std::int64_t count_ = 1;
  std::int64_t turn_ = 0;
};

// Where and in what dtype an operator is measured.
using Options = torch::TensorOptions;

Options options_of(const Sampler& sampler, spec::Precision precision) {
  return Options().dtype(precision_policy(precision, sampler.device()).model).device(sampler.device());
}

Tensor random_tensor(torch::IntArrayRef shape, const Options& options) {
  return torch::rand(shape, options.dtype(torch::kFloat32)).sub_(0.5).to(options.dtype().toScalarType());
}

std::vector<Tensor> random_tensors(std::int64_t count, torch::IntArrayRef shape, const Options& options) {
  std::vector<Tensor> tensors;
  for (std::int64_t i = 0; i < count; ++i) tensors.push_back(random_tensor(shape, options));
  return tensors;
}

struct Directions {
  Sample forward;
  Sample backward;
};

// `inputs` are leaves that want gradients; `apply` builds the graph from them.
Directions measure_directions(Sampler& sampler, const std::vector<Tensor>& inputs,
                              const std::function<Tensor()>& apply) {
  Directions result;
  result.forward = sampler.independent([&] { apply(); });
  const Tensor gradient = torch::ones_like(apply());
  const Sample both = sampler.independent([&] { torch::autograd::grad({apply()}, inputs, {gradient}); });
  // Noise can make the difference vanish; a tenth of the forward is less than any backward costs.
  result.backward = {std::max(both.seconds - result.forward.seconds, 0.1 * result.forward.seconds), both.spread};
  return result;
}

Tensor leaf(const Tensor& tensor) { return tensor.detach().requires_grad_(true); }

// Columns of the matrices that pointwise kernels are measured on: what ranks on CPUs train, and what GPUs do.
std::int64_t width_on(torch::Device device) { return device.is_cpu() ? 256 : 2048; }

// [rows, width] with about `elements` elements.
Tensor matrix_of(std::int64_t elements, const Options& options) {
  const std::int64_t width = width_on(options.device());
  return leaf(random_tensor({std::max<std::int64_t>(1, elements / width), width}, options));
}

// [samples, 16, 16, 16]
Tensor images_of(std::int64_t elements, const Options& options) {
  return leaf(random_tensor({std::max<std::int64_t>(1, elements / 4096), 16, 16, 16}, options));
}

// On a device the loss is part of the head: with few columns before it, its product takes next to nothing.
Directions measure_head_loss(Sampler& sampler, std::int64_t elements, const Options& options) {
  constexpr std::int64_t kVocabulary = 32768, kHidden = 64;
  const std::int64_t rows = std::max<std::int64_t>(1, elements / kVocabulary);
  const Tensor x = leaf(random_tensor({rows, kHidden}, options));
  const Tensor weight = leaf(random_tensor({kVocabulary, kHidden}, options));
  const Tensor targets = torch::zeros({rows}, options.dtype(torch::kInt64));
  return measure_directions(sampler, {x, weight},
                            [&] { return nn::linear_cross_entropy(x, weight, {}, targets, false).loss_sum; });
}

Directions measure_cross_entropy(Sampler& sampler, std::int64_t elements) {
  constexpr std::int64_t kWidth = 256;
  const std::int64_t rows = std::max<std::int64_t>(1, elements / kWidth);
  Tensor logits = random_tensor({rows, kWidth}, Options());
  const Tensor targets = torch::zeros({rows}, torch::kInt64);
  constexpr std::int64_t kRows = 16;  // per block
  const Sample forward = sampler.independent([&] {
    kernels::parallel_blocks((rows + kRows - 1) / kRows, [&](std::int64_t block) {
      const std::int64_t first = block * kRows;
      kernels::cross_entropy_rows(logits.data_ptr<float>() + first * kWidth, targets.data_ptr<std::int64_t>() + first,
                                  -100, true, std::min(kRows, rows - first), kWidth);
    });
  });
  return {forward, {0, forward.spread}};  // the gradient is part of the same pass
}

Directions measure_rotary(Sampler& sampler, std::int64_t elements, const Options& options) {
  const std::int64_t head_dim = options.device().is_cpu() ? 64 : 128;
  const std::int64_t heads = width_on(options.device()) / head_dim;
  const std::int64_t sequence = std::max<std::int64_t>(1, elements / (heads * head_dim));
  const Tensor x = leaf(random_tensor({1, sequence, heads, head_dim}, options));
  const nn::RopeTables tables = nn::rope_tables(sequence, head_dim, 10000.0, {}, options.dtype(torch::kFloat32));
  return measure_directions(sampler, {x}, [&] { return nn::rope(x, tables.cos, tables.sin); });
}

Directions measure_embedding(Sampler& sampler, std::int64_t elements, const Options& options) {
  const std::int64_t width = width_on(options.device());
  const std::int64_t vocabulary = options.device().is_cpu() ? 256 : 32768;
  const std::int64_t rows = std::max<std::int64_t>(1, elements / width);
  const Tensor table = leaf(random_tensor({vocabulary, width}, options));
  const Tensor tokens = torch::randint(0, vocabulary, {rows}, options.dtype(torch::kInt64));
  return measure_directions(sampler, {table}, [&] { return torch::embedding(table, tokens); });
}

// A residual costs a forward pass of its own only where it is not fused into the product before it (lockstep/nn fuses);
// its gradient is summed with the branch's either way.
Directions measure_residual_add(Sampler& sampler, std::int64_t elements, const Options& options) {
  const Tensor a = random_tensor({elements}, options);
  const Tensor b = random_tensor({elements}, options);
  const Sample add = sampler.independent([&] { torch::add(a, b); });
  return {{0, add.spread}, add};
}

Directions measure_image_kernel(Sampler& sampler, PointwiseKernel kernel, std::int64_t elements,
                                const Options& options) {
  if (kernel == PointwiseKernel::kBatchNorm) {
    const Tensor x = images_of(elements, options);
    const Tensor weight = leaf(torch::ones({16}, options));
    const Tensor bias = leaf(torch::zeros({16}, options));
    Tensor mean = torch::zeros({16}, options), variance = torch::ones({16}, options);
    return measure_directions(sampler, {x, weight, bias},
                              [&] { return at::batch_norm(x, weight, bias, mean, variance, true, 0.1, 1e-5, false); });
  }
  if (kernel == PointwiseKernel::kMaxPool) {
    const Tensor x = images_of(4 * elements, options);  // the output has a quarter of it
    return measure_directions(sampler, {x}, [&] { return at::max_pool2d(x, {2, 2}); });
  }
  const Tensor x = images_of(256 * elements, options);  // average pool: one output per 16 x 16 image
  return measure_directions(sampler, {x}, [&] { return x.mean({2, 3}); });
}

Directions measure_kernel(Sampler& sampler, PointwiseKernel kernel, std::int64_t elements, const Options& options) {
  const auto unary = [&](const std::function<Tensor(const Tensor&)>& function) {
    const Tensor x = matrix_of(elements, options);
    return measure_directions(sampler, {x}, [&] { return function(x); });
  };
  const Tensor x = matrix_of(elements, options);
  const Tensor weight = leaf(torch::ones({x.size(1)}, options));
  const Tensor bias = leaf(torch::zeros({x.size(1)}, options));
  switch (kernel) {
    case PointwiseKernel::kAdd:
      return unary([&](const Tensor& a) { return a + x.detach(); });
    case PointwiseKernel::kMultiply:
      return unary([&](const Tensor& a) { return a * x.detach(); });
    case PointwiseKernel::kRelu:
      return unary([](const Tensor& a) { return torch::relu(a); });
    case PointwiseKernel::kDropout:
      return unary([](const Tensor& a) { return nn::dropout(a, 0.1, {}); });
    case PointwiseKernel::kGelu:
      return measure_directions(sampler, {x, bias}, [&] { return nn::bias_gelu(x, bias); });
    case PointwiseKernel::kSilu: {
      const Tensor up = matrix_of(elements, options);
      return measure_directions(sampler, {x, up}, [&] { return nn::swiglu(x, up); });
    }
    case PointwiseKernel::kLayerNorm:
      return measure_directions(sampler, {x, weight, bias}, [&] { return nn::layer_norm(x, weight, bias, 1e-5); });
    case PointwiseKernel::kRmsNorm:
      return measure_directions(sampler, {x, weight}, [&] { return nn::rms_norm(x, weight, 1e-5); });
    case PointwiseKernel::kRotary:
      return measure_rotary(sampler, elements, options);
    case PointwiseKernel::kEmbedding:
      return measure_embedding(sampler, elements, options);
    case PointwiseKernel::kCrossEntropy:
      return options.device().is_cpu() ? measure_cross_entropy(sampler, elements)
                                       : measure_head_loss(sampler, elements, options);
    case PointwiseKernel::kResidualAdd:
      return measure_residual_add(sampler, elements, options);
    case PointwiseKernel::kBatchNorm:
    case PointwiseKernel::kMaxPool:
    case PointwiseKernel::kAveragePool:
      return measure_image_kernel(sampler, kernel, elements, options);
  }
  return {};
}

void add_point(cost::Profile& profile, MatmulKind kind, spec::Precision precision, const Operator& op, double flops,
               const Sample& sample) {
  profile.matmuls.push_back({kind, precision, op.m, op.n, op.k, flops / sample.seconds, sample.spread});
  profile.peak_flops = std::max(profile.peak_flops, flops / sample.seconds);
}

using Shape = std::tuple<int, std::int64_t, std::int64_t, std::int64_t>;

Shape shape_of(const Operator& op) {
  if (op.kind == cost::OperatorKind::kAttention) return {-1, op.heads, op.sequence, op.head_dim};
  if (op.kind == cost::OperatorKind::kPointwise) return {static_cast<int>(op.kernel), op.elements, 0, 0};
  return {-1, op.m, op.n, op.k};
}

bool contains(const std::vector<Operator>& list, const Operator& op) {
  return std::any_of(list.begin(), list.end(), [&](const Operator& other) { return shape_of(other) == shape_of(op); });
}

}  // namespace

void add_shapes(SweepPlan& plan, const std::vector<Operator>& operators) {
  for (const Operator& op : operators) {
    std::vector<Operator>* lists[] = {&plan.matmuls, &plan.convolutions, &plan.attentions, &plan.pointwise};
    std::vector<Operator>& list = *lists[static_cast<std::size_t>(op.kind)];
    if (!contains(list, op)) list.push_back(op);
  }
}

void remove_shapes(SweepPlan& plan, const SweepPlan& done) {
  const auto remove = [](std::vector<Operator>& from, const std::vector<Operator>& known) {
    std::erase_if(from, [&](const Operator& op) { return contains(known, op); });
  };
  remove(plan.matmuls, done.matmuls);
  remove(plan.convolutions, done.convolutions);
  remove(plan.attentions, done.attentions);
  remove(plan.pointwise, done.pointwise);
}

SweepPlan general_sweep(bool quick) {
  SweepPlan plan;
  const std::vector<std::int64_t> widths =
      quick ? std::vector<std::int64_t>{128, 256} : std::vector<std::int64_t>{64, 128, 256, 512, 768, 1024};
  const std::vector<std::int64_t> token_counts =
      quick ? std::vector<std::int64_t>{512} : std::vector<std::int64_t>{128, 512, 2048};
  // A transformer's products for these widths and tokens per micro-step, and its attention.
  for (const std::int64_t hidden : widths) {
    for (const std::int64_t tokens : token_counts) {
      spec::Model model;
      model.arch = spec::Arch::kGpt;
      model.layers = 1;
      model.hidden = hidden;
      model.head_dim = 64;
      model.heads = model.kv_heads = hidden / 64;
      model.ffn_hidden = 4 * hidden;
      model.vocab = 256;
      const std::int64_t sequence = std::min<std::int64_t>(tokens, 128);
      for (const Operator& op : cost::list_operators(model, tokens / sequence, sequence)) {
        if (op.kind != cost::OperatorKind::kPointwise) add_shapes(plan, {op});
      }
    }
  }
  const auto add_pointwise = [&](PointwiseKernel kernel) {
    for (const std::int64_t elements : quick ? std::vector<std::int64_t>{1 << 16, 1 << 19}
                                             : std::vector<std::int64_t>{1 << 12, 1 << 16, 1 << 19, 1 << 22}) {
      // An average pool reads 256 inputs per output.
      const std::int64_t scaled =
          kernel == PointwiseKernel::kAveragePool ? std::max<std::int64_t>(elements >> 8, 16) : elements;
      Operator op;
      op.kernel = kernel;
      op.elements = scaled;
      add_shapes(plan, {op});
    }
  };
  for (const PointwiseKernel kernel :
       {PointwiseKernel::kResidualAdd, PointwiseKernel::kGelu, PointwiseKernel::kLayerNorm, PointwiseKernel::kEmbedding,
        PointwiseKernel::kCrossEntropy}) {
    add_pointwise(kernel);
  }
  if (!quick) {
    for (const PointwiseKernel kernel :
         {PointwiseKernel::kAdd, PointwiseKernel::kRelu, PointwiseKernel::kSilu, PointwiseKernel::kRmsNorm,
          PointwiseKernel::kRotary, PointwiseKernel::kDropout, PointwiseKernel::kBatchNorm, PointwiseKernel::kMaxPool,
          PointwiseKernel::kAveragePool}) {
      add_pointwise(kernel);
    }
    spec::Model cifar;
    cifar.arch = spec::Arch::kCifarCnn;
    cifar.image_size = 32;
    cifar.image_channels = 3;
    cifar.classes = 10;
    for (const Operator& op : cost::list_operators(cifar, 16, 0)) {
      if (op.kind == cost::OperatorKind::kConvolution) add_shapes(plan, {op});
    }
  }
  return plan;
}

void measure_matmuls(Sampler& sampler, const SweepPlan& plan, spec::Precision precision, cost::Profile& profile) {
  const torch::NoGradGuard no_grad;
  const Options options = options_of(sampler, precision);
  for (const Operator& op : plan.matmuls) {
    if (sampler.exhausted()) return;
    const auto element = static_cast<std::int64_t>(options.dtype().itemsize());
    Rotation rotation((op.m * op.k + op.n * op.k + op.m * op.n) * element, sampler.device());
    const auto x = random_tensors(rotation.count(), {op.m, op.k}, options);
    const auto w = random_tensors(rotation.count(), {op.n, op.k}, options);
    const auto dy = random_tensors(rotation.count(), {op.m, op.n}, options);
    const double flops = op.forward_flops();
    add_point(profile, MatmulKind::kForward, precision, op, flops, sampler.independent([&] {
      const std::size_t i = rotation.next();
      at::mm(x[i], w[i].t());
    }));
    add_point(profile, MatmulKind::kInputGradient, precision, op, flops, sampler.independent([&] {
      const std::size_t i = rotation.next();
      at::mm(dy[i], w[i]);
    }));
    add_point(profile, MatmulKind::kWeightGradient, precision, op, flops, sampler.independent([&] {
      const std::size_t i = rotation.next();
      at::mm(dy[i].t(), x[i]);
    }));
  }
}

void measure_convolutions(Sampler& sampler, const SweepPlan& plan, spec::Precision precision, cost::Profile& profile) {
  const Options options = options_of(sampler, precision);
  for (const Operator& op : plan.convolutions) {
    if (sampler.exhausted()) return;
    const Tensor x = random_tensor({op.samples, op.channels, op.size, op.size}, options);
    const Tensor input = op.needs_input_gradient ? leaf(x) : x;
    const Tensor weight = leaf(random_tensor({op.n, op.channels, op.kernel_size, op.kernel_size}, options));
    std::vector<Tensor> inputs = {weight};
    if (op.needs_input_gradient) inputs.push_back(input);
    const Directions measured = measure_directions(sampler, inputs, [&] {
      return at::conv2d(input, weight, {}, {op.stride, op.stride}, {op.padding, op.padding});
    });
    add_point(profile, MatmulKind::kConvolutionForward, precision, op, op.forward_flops(), measured.forward);
    add_point(profile, MatmulKind::kConvolutionBackward, precision, op, op.backward_flops(), measured.backward);
  }
}

void measure_attention(Sampler& sampler, const SweepPlan& plan, spec::Precision precision, cost::Profile& profile) {
  for (const Operator& op : plan.attentions) {
    if (sampler.exhausted()) return;
    // The shape says samples x heads; a usual number of heads per sample gives usual strides.
    std::int64_t heads = std::min<std::int64_t>(op.heads, 8);
    while (op.heads % heads != 0) --heads;
    const Tensor qkv =
        leaf(random_tensor({op.heads / heads, op.sequence, 3 * heads * op.head_dim}, options_of(sampler, precision)));
    const Directions measured =
        measure_directions(sampler, {qkv}, [&] { return nn::causal_attention_packed(qkv, heads); });
    profile.attention.push_back({precision, true, op.heads, op.sequence, op.head_dim, measured.forward.seconds,
                                 measured.backward.seconds,
                                 std::max(measured.forward.spread, measured.backward.spread)});
  }
}

void measure_pointwise(Sampler& sampler, const SweepPlan& plan, spec::Precision precision, cost::Profile& profile) {
  for (const Operator& op : plan.pointwise) {
    if (sampler.exhausted()) return;
    const Directions measured = measure_kernel(sampler, op.kernel, op.elements, options_of(sampler, precision));
    profile.pointwise.push_back({op.kernel, precision, op.elements, measured.forward.seconds, measured.backward.seconds,
                                 std::max(measured.forward.spread, measured.backward.spread)});
  }
}

void measure_memory(Sampler& sampler, cost::Profile& profile) {
  const std::int64_t elements = sampler.device().is_cpu() ? 4 << 20 : 256 << 20;
  const Options options = Options().device(sampler.device());
  const Tensor source = random_tensor({elements}, options);
  Tensor target = torch::empty_like(source);
  const Sample copy = sampler.independent([&] { target.copy_(source); });
  profile.memory_bytes_per_second = 2.0 * 4.0 * static_cast<double>(elements) / copy.seconds;
}

void measure_overhead(Sampler& sampler, cost::Profile& profile) {
  // A product too small to take time of its own, with and without autograd around it.
  const Tensor x = leaf(random_tensor({1, 8}, Options()));
  const Tensor weight = leaf(random_tensor({8, 8}, Options()));
  const Directions recorded =
      measure_directions(sampler, {x, weight}, [&] { return nn::linear(x, weight, {}, nn::WeightLayout::kOutIn); });
  const Tensor plain_x = x.detach(), plain_weight = weight.detach();
  const Sample plain = sampler.independent([&] { at::mm(plain_x, plain_weight); });
  profile.operator_seconds = std::max(0.0, recorded.forward.seconds - plain.seconds);
  profile.backward_operator_seconds = std::max(0.0, recorded.backward.seconds - 2 * plain.seconds);
}

void measure_optimizer(Sampler& sampler, std::int64_t parameters, cost::Profile& profile) {
  const torch::NoGradGuard no_grad;
  const Options options = Options().device(sampler.device());
  kernels::OptimizerArrays arrays;
  arrays.parameter = torch::zeros({parameters}, options);
  arrays.gradient = torch::zeros({parameters}, options);
  arrays.first = torch::zeros({parameters}, options);
  arrays.second = torch::zeros({parameters}, options);
  const kernels::ElementRange all[] = {{0, parameters}};
  const Sample update = sampler.independent([&] {
    kernels::squared_norm(arrays.gradient);
    kernels::adamw(arrays, all, {});
    arrays.gradient.zero_();
  });
  const double bytes = cost::optimizer_bytes_per_parameter(spec::Precision::kFp32, spec::OptimizerKind::kAdamW);
  profile.optimizer_bytes_per_second = bytes * static_cast<double>(parameters) / update.seconds;
}

}  // namespace lockstep::engine
