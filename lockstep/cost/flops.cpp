#include "lockstep/cost/flops.h"

#include "lockstep/cost/layer.h"

#include "lockstep/base/error.h"
#include "lockstep/cost/operators.h"

namespace lockstep::cost {

// A product of [m,k] and [k,n] is m n k multiply-adds. Attention is two products per head, scores and values, each
// s^2 d multiply-adds, of which a causal mask leaves half (Narayanan et al. 2021, "Efficient Large-Scale Language Model
// Training on GPU Clusters", appendix; Dao et al. 2022, FlashAttention, section 4, for the causal half).
double Operator::forward_flops() const {
  switch (kind) {
    case OperatorKind::kMatmul:
    case OperatorKind::kConvolution:
      return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    case OperatorKind::kAttention: {
      const double rows = static_cast<double>(heads) * static_cast<double>(sequence),
                   all = static_cast<double>(sequence);
      if (window > 0 && window < sequence) {  // the first rows see fewer keys
        const double keys = static_cast<double>(window) * (1 - static_cast<double>(window) / (2 * all));
        return 4.0 * rows * keys * static_cast<double>(head_dim);
      }
      return (causal ? 2.0 : 4.0) * rows * all * static_cast<double>(head_dim);
    }
    case OperatorKind::kPointwise:
      return 0;
  }
  return 0;
}

// Two products of the forward's size: one for the input's gradient, one for the weight's (for attention: for both
// operands of both products). Recomputing scores in a flash kernel does not count as model FLOPs.
double Operator::backward_flops() const {
  return (needs_input_gradient || kind == OperatorKind::kAttention ? 2.0 : 1.0) * forward_flops();
}

std::vector<Operator> list_operators(const spec::Model& model, std::int64_t samples, std::int64_t sequence) {
  switch (model.arch) {
    case spec::Arch::kGpt:
      return gpt_operators(model, samples, sequence);
    case spec::Arch::kLlama:
      if (spec::is_latent(model)) break;
      return llama_operators(model, samples, sequence);
    case spec::Arch::kMnistCnn:
    case spec::Arch::kCifarCnn:
      return cnn_operators(model, samples);
    case spec::Arch::kResNet:
      return resnet_operators(model, samples);
    case spec::Arch::kTorchScript:
    case spec::Arch::kPlugin:
      return script_operators(model, samples);
    case spec::Arch::kBert:
    case spec::Arch::kMoe:
    case spec::Arch::kMamba:
      break;
  }
  throw does_not_fit(std::string("architecture ") + spec::to_string(model.arch) + " is not priced yet",
                     "gpt, llama, mnist_cnn, cifar_cnn and resnet are");
}

double forward_flops(const spec::Model& model, std::int64_t samples, std::int64_t sequence) {
  double flops = 0;
  for (const Operator& op : list_operators(model, samples, sequence)) {
    flops += static_cast<double>(op.count) * op.forward_flops();
  }
  return flops;
}

double training_flops(const spec::Model& model, std::int64_t samples, std::int64_t sequence) {
  double flops = 0;
  for (const Operator& op : list_operators(model, samples, sequence)) {
    flops += static_cast<double>(op.count) * (op.forward_flops() + op.backward_flops());
  }
  return flops;
}

double mfu_flops_per_token(const spec::Model& model, std::int64_t sequence) {
  const double parameters = static_cast<double>(spec::active_parameter_count_without_input_embedding(model));
  const Dimensions d = dimensions_of(model);
  const double layers = d.layers;
  if (model.arch == spec::Arch::kMamba) {
    return 6.0 * parameters + 3.0 * 9.0 * layers * d.inner * d.state;
  }
  // 12 for both products of a key and of a value, forward and backward.
  return 6.0 * parameters + 12.0 * layers * d.heads * d.head_dim * keys_per_token(d, static_cast<double>(sequence));
}

double mfu(const spec::Model& model, std::int64_t sequence, double tokens_per_second, std::int64_t devices,
           double peak_flops_per_device) {
  const double peak = static_cast<double>(devices) * peak_flops_per_device;
  return peak > 0 ? tokens_per_second * mfu_flops_per_token(model, sequence) / peak : 0;
}

}  // namespace lockstep::cost
