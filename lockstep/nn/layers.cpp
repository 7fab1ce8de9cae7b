#include "lockstep/nn/layers.h"

#include <cmath>

#include "lockstep/nn/random.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;

void draw(Tensor& tensor, const Init& init, std::int64_t fan_in, std::int64_t fan_out, const std::string& name,
          std::uint64_t seed) {
  const PhiloxKey key = stream_key(seed, name);
  switch (init.kind) {
    case Init::Kind::kNormal:
      return fill_normal(tensor, 0.0, init.std, key);
    case Init::Kind::kKaimingUniform: {  // kaiming_uniform_(a = sqrt(5)) is U(-1/sqrt(fan_in), 1/sqrt(fan_in))
      const double bound = 1.0 / std::sqrt(static_cast<double>(fan_in));
      return fill_uniform(tensor, -bound, bound, key);
    }
    case Init::Kind::kKaimingNormalFanOut:  // gain of ReLU
      return fill_normal(tensor, 0.0, std::sqrt(2.0 / static_cast<double>(fan_out)), key);
  }
}

void reset_bias(Tensor& bias, const Init& init, std::int64_t fan_in, const std::string& name, std::uint64_t seed) {
  if (!bias.defined()) return;
  if (init.kind == Init::Kind::kKaimingUniform) return draw(bias, init, fan_in, 0, name, seed);
  const torch::NoGradGuard no_grad;
  bias.zero_();
}

void set(Tensor& tensor, double value) {
  if (!tensor.defined()) return;
  const torch::NoGradGuard no_grad;
  tensor.fill_(value);
}

bool is_narrow(const Tensor& x) { return x.scalar_type() == torch::kBFloat16 || x.scalar_type() == torch::kHalf; }

}  // namespace

void initialise(torch::nn::Module& model, std::uint64_t seed) {
  for (const auto& entry : model.named_modules("", /*include_self=*/false)) {
    if (auto* layer = dynamic_cast<Layer*>(entry.value().get())) layer->reset(entry.key(), seed);
  }
}

Linear::Linear(std::int64_t in, std::int64_t out, bool with_bias, WeightLayout layout, Init init,
               const torch::TensorOptions& options)
    : in_(in), layout_(layout), init_(init) {
  const bool in_out = layout == WeightLayout::kInOut;
  weight = register_parameter("weight", torch::empty({in_out ? in : out, in_out ? out : in}, options));
  if (with_bias) bias = register_parameter("bias", torch::empty({out}, options));
}

void Linear::reset(const std::string& name, std::uint64_t seed) {
  draw(weight, init_, in_, weight.numel() / in_, name + ".weight", seed);
  reset_bias(bias, init_, in_, name + ".bias", seed);
}

Embedding::Embedding(std::int64_t count, std::int64_t dim, double std, const torch::TensorOptions& options)
    : std_(std) {
  weight = register_parameter("weight", torch::empty({count, dim}, options));
}

void Embedding::reset(const std::string& name, std::uint64_t seed) {
  fill_normal(weight, 0.0, std_, stream_key(seed, name + ".weight"));
}

LayerNorm::LayerNorm(std::int64_t dim, bool with_bias, double epsilon, const torch::TensorOptions& options)
    : epsilon_(epsilon) {
  weight = register_parameter("weight", torch::empty({dim}, options));
  if (with_bias) bias = register_parameter("bias", torch::empty({dim}, options));
}

void LayerNorm::reset(const std::string&, std::uint64_t) {
  set(weight, 1.0);
  set(bias, 0.0);
}

RmsNorm::RmsNorm(std::int64_t dim, double epsilon, const torch::TensorOptions& options) : epsilon_(epsilon) {
  weight = register_parameter("weight", torch::empty({dim}, options));
}

void RmsNorm::reset(const std::string&, std::uint64_t) { set(weight, 1.0); }

Conv2d::Conv2d(const ConvShape& shape, Init init, const torch::TensorOptions& options) : shape_(shape), init_(init) {
  weight = register_parameter("weight", torch::empty({shape.out, shape.in, shape.kernel, shape.kernel}, options));
  if (shape.bias) bias = register_parameter("bias", torch::empty({shape.out}, options));
}

Tensor Conv2d::forward(const Tensor& x) const {
  return at::conv2d(x, weight, bias, {shape_.stride, shape_.stride}, {shape_.padding, shape_.padding});
}

void Conv2d::reset(const std::string& name, std::uint64_t seed) {
  const std::int64_t area = shape_.kernel * shape_.kernel;
  draw(weight, init_, shape_.in * area, shape_.out * area, name + ".weight", seed);
  reset_bias(bias, init_, shape_.in * area, name + ".bias", seed);
}

BatchNorm2d::BatchNorm2d(std::int64_t channels, const torch::TensorOptions& options) {
  const auto wide = options.dtype(options.dtype() == torch::kDouble ? torch::kDouble : torch::kFloat);
  weight = register_parameter("weight", torch::empty({channels}, options));
  bias = register_parameter("bias", torch::empty({channels}, options));
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

void BatchNorm2d::reset(const std::string&, std::uint64_t) {
  set(weight, 1.0);
  set(bias, 0.0);
  running_mean.zero_();
  running_var.fill_(1.0);
  num_batches_tracked.zero_();
}

}  // namespace lockstep::nn
