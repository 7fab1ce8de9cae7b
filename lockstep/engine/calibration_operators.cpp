#include "lockstep/engine/calibration_operators.h"

#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <tuple>

#include "lockstep/cost/memory.h"
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

class Rotation {
 public:
  explicit Rotation(std::int64_t bytes_per_set)
      : count_(std::clamp<std::int64_t>(kRotatedBytes / std::max<std::int64_t>(bytes_per_set, 1), 1, 8)) {}
  std::int64_t count() const { return count_; }
  std::size_t next() { return static_cast<std::size_t>(turn_++ % count_); }

 private:
  std::int64_t count_;
  std::int64_t turn_ = 0;
};

Tensor random_tensor(torch::IntArrayRef shape, torch::Dtype dtype) {
  return torch::rand(shape, torch::TensorOptions().dtype(torch::kFloat32)).sub_(0.5).to(dtype);
}

std::vector<Tensor> random_tensors(std::int64_t count, torch::IntArrayRef shape, torch::Dtype dtype) {
  std::vector<Tensor> tensors;
  for (std::int64_t i = 0; i < count; ++i) tensors.push_back(random_tensor(shape, dtype));
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

constexpr std::int64_t kWidth = 256;  // columns of the matrices that pointwise kernels are measured on

// [rows, kWidth] with about `elements` elements.
Tensor matrix_of(std::int64_t elements, torch::Dtype dtype) {
  return leaf(random_tensor({std::max<std::int64_t>(1, elements / kWidth), kWidth}, dtype));
}

// [samples, 16, 16, 16]
Tensor images_of(std::int64_t elements, torch::Dtype dtype) {
  return leaf(random_tensor({std::max<std::int64_t>(1, elements / 4096), 16, 16, 16}, dtype));
}

Directions measure_cross_entropy(Sampler& sampler, std::int64_t elements) {
  const std::int64_t rows = std::max<std::int64_t>(1, elements / kWidth);
  Tensor logits = random_tensor({rows, kWidth}, torch::kFloat32);
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

Directions measure_rotary(Sampler& sampler, std::int64_t elements, torch::Dtype dtype) {
  const std::int64_t heads = 4, head_dim = 64;
  const std::int64_t sequence = std::max<std::int64_t>(1, elements / (heads * head_dim));
  const Tensor x = leaf(random_tensor({1, sequence, heads, head_dim}, dtype));
  const nn::RopeTables tables =
      nn::rope_tables(sequence, head_dim, 10000.0, {}, torch::TensorOptions().dtype(torch::kFloat32));
  return measure_directions(sampler, {x}, [&] { return nn::rope(x, tables.cos, tables.sin); });
}

Directions measure_embedding(Sampler& sampler, std::int64_t elements, torch::Dtype dtype) {
  const std::int64_t rows = std::max<std::int64_t>(1, elements / kWidth);
  const Tensor table = leaf(random_tensor({256, kWidth}, dtype));
  const Tensor tokens = torch::randint(0, 256, {rows}, torch::kInt64);
  return measure_directions(sampler, {table}, [&] { return torch::embedding(table, tokens); });
}

// A residual costs a forward pass of its own only where it is not fused into the product before it (lockstep/nn fuses);
// its gradient is summed with the branch's either way.
Directions measure_residual_add(Sampler& sampler, std::int64_t elements, torch::Dtype dtype) {
  const Tensor a = random_tensor({elements}, dtype);
  const Tensor b = random_tensor({elements}, dtype);
  const Sample add = sampler.independent([&] { torch::add(a, b); });
  return {{0, add.spread}, add};
}

Directions measure_image_kernel(Sampler& sampler, PointwiseKernel kernel, std::int64_t elements, torch::Dtype dtype) {
  if (kernel == PointwiseKernel::kBatchNorm) {
    const Tensor x = images_of(elements, dtype);
    const Tensor weight = leaf(torch::ones({16}, dtype));
    const Tensor bias = leaf(torch::zeros({16}, dtype));
    Tensor mean = torch::zeros({16}, dtype), variance = torch::ones({16}, dtype);
    return measure_directions(sampler, {x, weight, bias},
                              [&] { return at::batch_norm(x, weight, bias, mean, variance, true, 0.1, 1e-5, false); });
  }
  if (kernel == PointwiseKernel::kMaxPool) {
    const Tensor x = images_of(4 * elements, dtype);  // the output has a quarter of it
    return measure_directions(sampler, {x}, [&] { return at::max_pool2d(x, {2, 2}); });
  }
  const Tensor x = images_of(256 * elements, dtype);  // average pool: one output per 16 x 16 image
  return measure_directions(sampler, {x}, [&] { return x.mean({2, 3}); });
}

Directions measure_kernel(Sampler& sampler, PointwiseKernel kernel, std::int64_t elements, torch::Dtype dtype) {
  const auto unary = [&](const std::function<Tensor(const Tensor&)>& function) {
    const Tensor x = matrix_of(elements, dtype);
    return measure_directions(sampler, {x}, [&] { return function(x); });
  };
  const Tensor weight = leaf(torch::ones({kWidth}, dtype));
  const Tensor bias = leaf(torch::zeros({kWidth}, dtype));
  const Tensor x = matrix_of(elements, dtype);
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
      const Tensor up = matrix_of(elements, dtype);
      return measure_directions(sampler, {x, up}, [&] { return nn::swiglu(x, up); });
    }
    case PointwiseKernel::kLayerNorm:
      return measure_directions(sampler, {x, weight, bias}, [&] { return nn::layer_norm(x, weight, bias, 1e-5); });
    case PointwiseKernel::kRmsNorm:
      return measure_directions(sampler, {x, weight}, [&] { return nn::rms_norm(x, weight, 1e-5); });
    case PointwiseKernel::kRotary:
      return measure_rotary(sampler, elements, dtype);
    case PointwiseKernel::kEmbedding:
      return measure_embedding(sampler, elements, dtype);
    case PointwiseKernel::kCrossEntropy:
      return measure_cross_entropy(sampler, elements);
    case PointwiseKernel::kResidualAdd:
      return measure_residual_add(sampler, elements, dtype);
    case PointwiseKernel::kBatchNorm:
    case PointwiseKernel::kMaxPool:
    case PointwiseKernel::kAveragePool:
      return measure_image_kernel(sampler, kernel, elements, dtype);
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
  const torch::Dtype dtype = precision_policy(precision, torch::kCPU).model;
  for (const Operator& op : plan.matmuls) {
    if (sampler.exhausted()) return;
    Rotation rotation((op.m * op.k + op.n * op.k + op.m * op.n) * static_cast<std::int64_t>(torch::elementSize(dtype)));
    const auto x = random_tensors(rotation.count(), {op.m, op.k}, dtype);
    const auto w = random_tensors(rotation.count(), {op.n, op.k}, dtype);
    const auto dy = random_tensors(rotation.count(), {op.m, op.n}, dtype);
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
  const torch::Dtype dtype = precision_policy(precision, torch::kCPU).model;
  for (const Operator& op : plan.convolutions) {
    if (sampler.exhausted()) return;
    const Tensor x = random_tensor({op.samples, op.channels, op.size, op.size}, dtype);
    const Tensor input = op.needs_input_gradient ? leaf(x) : x;
    const Tensor weight = leaf(random_tensor({op.n, op.channels, op.kernel_size, op.kernel_size}, dtype));
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
    const Tensor qkv = leaf(random_tensor({op.heads / heads, op.sequence, 3 * heads * op.head_dim},
                                          precision_policy(precision, torch::kCPU).model));
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
    const Directions measured =
        measure_kernel(sampler, op.kernel, op.elements, precision_policy(precision, torch::kCPU).model);
    profile.pointwise.push_back({op.kernel, precision, op.elements, measured.forward.seconds, measured.backward.seconds,
                                 std::max(measured.forward.spread, measured.backward.spread)});
  }
}

void measure_memory_and_overhead(Sampler& sampler, cost::Profile& profile) {
  const std::int64_t elements = 4 << 20;
  Tensor source = torch::zeros({elements}), target = torch::zeros({elements});
  const Sample copy = sampler.independent([&] { target.copy_(source); });
  profile.memory_bytes_per_second = 2.0 * 4.0 * static_cast<double>(elements) / copy.seconds;

  // A product too small to take time of its own, with and without autograd around it.
  const Tensor x = leaf(random_tensor({1, 8}, torch::kFloat32));
  const Tensor weight = leaf(random_tensor({8, 8}, torch::kFloat32));
  const Directions recorded =
      measure_directions(sampler, {x, weight}, [&] { return nn::linear(x, weight, {}, nn::WeightLayout::kOutIn); });
  const Tensor plain_x = x.detach(), plain_weight = weight.detach();
  const Sample plain = sampler.independent([&] { at::mm(plain_x, plain_weight); });
  profile.operator_seconds = std::max(0.0, recorded.forward.seconds - plain.seconds);
  profile.backward_operator_seconds = std::max(0.0, recorded.backward.seconds - 2 * plain.seconds);
}

void measure_optimizer(Sampler& sampler, std::int64_t parameters, cost::Profile& profile) {
  const torch::NoGradGuard no_grad;
  kernels::OptimizerArrays arrays;
  arrays.parameter = torch::zeros({parameters});
  arrays.gradient = torch::zeros({parameters});
  arrays.first = torch::zeros({parameters});
  arrays.second = torch::zeros({parameters});
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
