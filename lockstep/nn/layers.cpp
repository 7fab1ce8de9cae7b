#include "lockstep/nn/layers.h"

#include <cmath>
#include <set>
#include <utility>

#include "lockstep/nn/random.h"
#ifdef LOCKSTEP_TORCH_HAS_CUDA
#include "lockstep/nn/cuda/image_functions.h"
#endif

namespace lockstep::nn {
namespace {

using torch::Tensor;

InitialValue weight_value(const Init& init, std::int64_t fan_in, std::int64_t fan_out) {
  switch (init.kind) {
    case Init::Kind::kNormal:
      return normal_value(0.0, init.std);
    case Init::Kind::kKaimingUniform: {  // kaiming_uniform_(a = sqrt(5)) is U(-1/sqrt(fan_in), 1/sqrt(fan_in))
      const double bound = 1.0 / std::sqrt(static_cast<double>(fan_in));
      return uniform_value(-bound, bound);
    }
    case Init::Kind::kKaimingNormalFanOut:  // gain of ReLU
      return normal_value(0.0, std::sqrt(2.0 / static_cast<double>(fan_out)));
  }
  return constant_value(0.0);
}

InitialValue bias_value(const Init& init, std::int64_t fan_in) {
  return init.kind == Init::Kind::kKaimingUniform ? weight_value(init, fan_in, 0) : constant_value(0.0);
}

bool is_narrow(const Tensor& x) { return x.scalar_type() == torch::kBFloat16 || x.scalar_type() == torch::kHalf; }

Placement whole_placement(std::vector<std::int64_t> sizes, const Sharing& sharing = {}) {
  return {.whole = std::move(sizes), .sharers = sharing.sharers, .partial_gradient = sharing.partial};
}

void fill_initial(const DeclaredParameter& parameter, std::uint64_t seed) {
  if (parameter.tensor.is_meta()) return;
  const torch::NoGradGuard no_grad;
  Tensor local = torch::empty({parameter.tensor.numel()}, parameter.tensor.options());
  for (const Run& run : runs_of(parameter.placement, 0, local.numel())) {
    Tensor stretch = local.narrow(0, run.local, run.count);
    parameter.initial(stretch, run.whole, seed, parameter.name);
  }
  Tensor target = parameter.tensor;
  target.copy_(local.view(target.sizes()));
}

}  // namespace

Tensor Layer::declare(const std::string& name, Placement placement, InitialValue initial,
                      const torch::TensorOptions& options) {
  Tensor tensor = register_parameter(name, torch::empty(placement.local_sizes(), options));
  declared_.push_back({name, tensor, std::move(placement), std::move(initial)});
  return tensor;
}

void Layer::adopt(const std::string& name, const Tensor& tensor, Placement placement, InitialValue initial) {
  register_parameter(name, tensor, tensor.requires_grad());
  declared_.push_back({name, tensor, std::move(placement), std::move(initial)});
}

std::vector<DeclaredParameter> declared_parameters(const torch::nn::Module& model) {
  std::vector<DeclaredParameter> all;
  if (const auto* owner = dynamic_cast<const ParameterOwner*>(&model)) all = owner->declared();
  std::set<const Layer*> seen;
  for (const auto& entry : model.named_modules("", /*include_self=*/false)) {
    const auto* layer = dynamic_cast<const Layer*>(entry.value().get());
    if (layer == nullptr || !seen.insert(layer).second) continue;
    for (DeclaredParameter parameter : layer->declared()) {
      parameter.name = entry.key() + "." + parameter.name;
      all.push_back(std::move(parameter));
    }
  }
  return all;
}

void initialise(torch::nn::Module& model, std::uint64_t seed) {
  for (const DeclaredParameter& parameter : declared_parameters(model)) fill_initial(parameter, seed);
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* layer = dynamic_cast<Layer*>(module.get())) layer->reset_buffers();
  }
}

Linear::Linear(std::int64_t in, std::int64_t out, bool with_bias, WeightLayout layout, Init init,
               const torch::TensorOptions& options, const LinearCut& cut)
    : layout_(layout) {
  const bool in_out = layout == WeightLayout::kInOut;
  const bool by_outputs = cut.kind == LinearCut::Kind::kOutputs;
  Placement placement = whole_placement({in_out ? in : out, in_out ? out : in}, cut.weight);
  placement.expert = cut.expert;
  if (cut.kind != LinearCut::Kind::kWhole) {
    placement.dim = by_outputs == in_out ? 1 : 0;
    placement.segments = cut.segments;
  }
  weight = declare("weight", placement, weight_value(init, in, out), options);
  if (!with_bias) return;
  Placement of_bias = whole_placement({out}, by_outputs ? cut.weight : cut.bias);
  of_bias.expert = cut.expert;
  if (by_outputs) of_bias.segments = cut.segments;
  bias = declare("bias", of_bias, bias_value(init, in), options);
}

Tensor activated(const Linear& layer, const Tensor& x, spec::Activation activation) {
  switch (activation) {
    case spec::Activation::kGeluTanh:
      return bias_gelu(layer.product(x), layer.bias);
    case spec::Activation::kGelu:
      return x.is_cuda() ? bias_gelu_erf(layer.product(x), layer.bias) : at::gelu(layer.forward(x));
    case spec::Activation::kRelu:
      return at::relu(layer.forward(x));
    case spec::Activation::kSilu:
      return at::silu(layer.forward(x));
  }
  return {};
}

Embedding::Embedding(std::int64_t count, std::int64_t dim, double std, const torch::TensorOptions& options,
                     const std::vector<Segment>& rows, Sharing sharing)
    : first_row_(rows.empty() ? 0 : rows.front().first) {
  Placement placement = whole_placement({count, dim}, sharing);
  placement.segments = rows;
  weight = declare("weight", placement, normal_value(0.0, std), options);
}

Tensor Embedding::forward_own(const Tensor& indices) const {
  const Tensor local = indices - first_row_;
  const Tensor foreign = (local < 0) | (local >= weight.size(0));
  return at::embedding(weight, local.masked_fill(foreign, 0)).masked_fill(foreign.unsqueeze(-1), 0);
}

LayerNorm::LayerNorm(std::int64_t dim, bool with_bias, double epsilon, const torch::TensorOptions& options,
                     Sharing sharing)
    : epsilon_(epsilon) {
  weight = declare("weight", whole_placement({dim}, sharing), constant_value(1.0), options);
  if (with_bias) bias = declare("bias", whole_placement({dim}, sharing), constant_value(0.0), options);
}

RmsNorm::RmsNorm(std::int64_t dim, double epsilon, const torch::TensorOptions& options, Sharing sharing)
    : epsilon_(epsilon) {
  weight = declare("weight", whole_placement({dim}, sharing), constant_value(1.0), options);
}

Norm::Norm(std::int64_t dim, const Settings& settings, const torch::TensorOptions& options, Sharing sharing,
           const std::vector<Segment>& rows)
    : settings_(settings) {
  if (settings.kind == spec::NormKind::kLayerPlain) return;
  Placement placement = whole_placement({dim}, sharing);
  placement.segments = rows;
  weight = declare("weight", placement, constant_value(settings.plus_one ? 0.0 : 1.0), options);
  if (settings.kind == spec::NormKind::kLayer && settings.bias) {
    bias = declare("bias", placement, constant_value(0.0), options);
  }
}

Tensor Norm::forward(const Tensor& x) const {
  if (settings_.kind == spec::NormKind::kRms) return rms_norm(x, scale(), settings_.epsilon);
  return layer_norm(x, weight, bias, settings_.epsilon);
}

Conv2d::Conv2d(const ConvShape& shape, Init init, const torch::TensorOptions& options) : shape_(shape) {
  const std::int64_t area = shape.kernel * shape.kernel;
  weight = declare("weight", whole_placement({shape.out, shape.in, shape.kernel, shape.kernel}),
                   weight_value(init, shape.in * area, shape.out * area), options);
  if (shape.bias) bias = declare("bias", whole_placement({shape.out}), bias_value(init, shape.in * area), options);
}

Tensor Conv2d::forward(const Tensor& x) const { return convolve(x, shape_.stride); }

Tensor Conv2d::convolve(const Tensor& x, std::int64_t stride) const {
#ifdef LOCKSTEP_TORCH_HAS_CUDA
  if (x.is_cuda() && x.scalar_type() == torch::kBFloat16 && !bias.defined()) {
    return cuda::convolution(x, weight, stride, shape_.padding);
  }
#endif
  return at::conv2d(x, weight, bias, {stride, stride}, {shape_.padding, shape_.padding});
}

BatchNorm2d::BatchNorm2d(std::int64_t channels, const torch::TensorOptions& options) {
  const auto wide = options.dtype(options.dtype() == torch::kDouble ? torch::kDouble : torch::kFloat);
  weight = declare("weight", whole_placement({channels}), constant_value(1.0), options);
  bias = declare("bias", whole_placement({channels}), constant_value(0.0), options);
  running_mean = register_buffer("running_mean", torch::empty({channels}, wide));
  running_var = register_buffer("running_var", torch::empty({channels}, wide));
  num_batches_tracked = register_buffer("num_batches_tracked", torch::empty({}, options.dtype(torch::kLong)));
}

Tensor BatchNorm2d::forward(const Tensor& x, bool training) {
  if (training) num_batches_tracked += 1;
  const auto wide = running_mean.scalar_type();
  const bool narrow = is_narrow(x);
  const Tensor y = at::batch_norm(narrow ? x.to(wide) : x, narrow ? weight.to(wide) : weight,
                                  narrow ? bias.to(wide) : bias, running_mean, running_var, training,
                                  /*momentum=*/0.1, /*eps=*/1e-5, /*cudnn_enabled=*/true);
  return narrow ? y.to(x.scalar_type()) : y;
}

void BatchNorm2d::reset_buffers() {
  running_mean.zero_();
  running_var.fill_(1.0);
  num_batches_tracked.zero_();
}

}  // namespace lockstep::nn
