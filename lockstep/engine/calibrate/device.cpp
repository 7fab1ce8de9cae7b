#include "lockstep/engine/calibrate/device.h"

#include <dlfcn.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <array>

#include "lockstep/cost/profile/constants_from_tables.h"
#include "lockstep/nn/model.h"
#include "lockstep/nn/torch_compat.h"

namespace lockstep::engine {
namespace {

using cost::Operator;
using cost::PointwiseKernel;
using torch::Tensor;

spec::Model llama(std::int64_t layers, std::int64_t hidden, std::int64_t ffn, std::int64_t sequence) {
  spec::Model model;
  model.name = "check-llama-" + std::to_string(layers) + "x" + std::to_string(hidden);
  model.arch = spec::Arch::kLlama;
  model.layers = layers;
  model.hidden = hidden;
  model.head_dim = 128;
  model.heads = model.kv_heads = hidden / 128;
  model.ffn_hidden = ffn;
  model.vocab = 32000;
  model.max_sequence = sequence;
  model.bias = false;
  model.activation = spec::Activation::kSilu;
  return model;
}

spec::Model gpt(std::int64_t layers, std::int64_t hidden, std::int64_t sequence) {
  spec::Model model;
  model.name = "check-gpt-" + std::to_string(layers) + "x" + std::to_string(hidden);
  model.arch = spec::Arch::kGpt;
  model.layers = layers;
  model.hidden = hidden;
  model.head_dim = 64;
  model.heads = model.kv_heads = hidden / 64;
  model.ffn_hidden = 4 * hidden;
  model.vocab = 50304;
  model.max_sequence = sequence;
  model.tied_embeddings = true;
  return model;
}

void add_product(SweepPlan& plan, std::int64_t m, std::int64_t n, std::int64_t k) {
  Operator op;
  op.kind = cost::OperatorKind::kMatmul;
  op.m = m;
  op.n = n;
  op.k = k;
  add_shapes(plan, {op});
}

// [1, sequence] tokens through a model of `layers` layers, so small that the device waits for the host.
struct TinyModel {
  std::shared_ptr<nn::TrainableModel> model;
  Tensor tokens;

  TinyModel(std::int64_t layers, torch::Dtype dtype, torch::Device device) {
    spec::Model spec = llama(layers, 128, 256, 16);
    spec.vocab = 64;
    model = nn::build_model(spec, {.dtype = dtype, .device = device, .seed = 1});
    tokens = torch::zeros({1, 16}, torch::TensorOptions().dtype(torch::kInt64).device(device));
  }

  Tensor logits() const { return model->forward(tokens, {.seed = 1, .step = 0, .first_index = 0, .training = true}); }
};

struct HostSeconds {
  double forward = 0;
  double both = 0;
};

HostSeconds host_seconds(Sampler& sampler, std::int64_t layers, torch::Dtype dtype) {
  const TinyModel tiny(layers, dtype, sampler.device());
  const std::vector<Tensor> parameters = tiny.model->parameters();
  const Tensor gradient = torch::ones_like(tiny.logits());
  HostSeconds seconds;
  seconds.forward = sampler.independent([&] { tiny.logits(); }).seconds;
  seconds.both = sampler.independent([&] { torch::autograd::grad({tiny.logits()}, parameters, {gradient}); }).seconds;
  return seconds;
}

}  // namespace

std::string cuda_device_name(int index) {
  // The driver's own interface: libtorch's would need CUDA's headers.
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return "unknown";
  const auto initialise = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto get = reinterpret_cast<int (*)(int*, int)>(dlsym(driver, "cuDeviceGet"));
  const auto get_name = reinterpret_cast<int (*)(char*, int, int)>(dlsym(driver, "cuDeviceGetName"));
  std::array<char, 256> name{};
  int device = 0;
  const bool known = initialise != nullptr && get != nullptr && get_name != nullptr && initialise(0) == 0 &&
                     get(&device, index) == 0 && get_name(name.data(), static_cast<int>(name.size()) - 1, device) == 0;
  return known ? std::string(name.data()) : "unknown";
}

SweepPlan device_sweep(bool quick) {
  SweepPlan plan;
  const std::vector<std::int64_t> widths =
      quick ? std::vector<std::int64_t>{1024, 4096} : std::vector<std::int64_t>{768, 1024, 2048, 4096, 8192};
  const std::vector<std::int64_t> token_counts =
      quick ? std::vector<std::int64_t>{2048, 8192} : std::vector<std::int64_t>{1024, 4096, 16384};
  for (const std::int64_t hidden : widths) {
    for (const std::int64_t tokens : token_counts) {
      add_product(plan, tokens, hidden, hidden);
      add_product(plan, tokens, 3 * hidden, hidden);
      add_product(plan, tokens, 4 * hidden, hidden);
      add_product(plan, tokens, hidden, 4 * hidden);
      if (hidden <= 4096) add_product(plan, tokens, 32000, hidden);
    }
  }
  constexpr std::int64_t kTokens = 16384;
  for (const std::int64_t head_dim : {64, 128}) {
    for (const std::int64_t sequence :
         quick ? std::vector<std::int64_t>{1024, 4096} : std::vector<std::int64_t>{512, 1024, 2048, 4096, 8192}) {
      Operator op;
      op.kind = cost::OperatorKind::kAttention;
      op.heads = kTokens / sequence * 16;
      op.sequence = sequence;
      op.head_dim = head_dim;
      op.causal = true;
      add_shapes(plan, {op});
    }
  }
  for (const PointwiseKernel kernel : {PointwiseKernel::kResidualAdd, PointwiseKernel::kGelu, PointwiseKernel::kSilu,
                                       PointwiseKernel::kLayerNorm, PointwiseKernel::kRmsNorm, PointwiseKernel::kRotary,
                                       PointwiseKernel::kEmbedding, PointwiseKernel::kCrossEntropy}) {
    for (const std::int64_t elements : {1 << 23, 1 << 25, 1 << 27}) {
      Operator op;
      op.kernel = kernel;
      op.elements = elements;
      add_shapes(plan, {op});
    }
  }
  return plan;
}

void measure_fp8_products(Sampler& sampler, const SweepPlan& plan, cost::Profile& profile) {
  if (!nn::compat::has_fp8_product() || sampler.device().is_cpu()) return;
  const torch::NoGradGuard no_grad;
  const auto options = torch::TensorOptions().dtype(torch::kBFloat16).device(sampler.device());
  const Tensor unit = torch::ones({}, options.dtype(torch::kFloat32));
  for (const Operator& op : plan.matmuls) {
    if (op.n % 16 != 0 || op.k % 16 != 0) continue;
    const Tensor x = nn::compat::to_fp8(torch::rand({op.m, op.k}, options).sub_(0.5));
    const Tensor w = nn::compat::to_fp8(torch::rand({op.n, op.k}, options).sub_(0.5));
    try {
      const Sample sample = sampler.independent([&] { nn::compat::fp8_product(x, w, unit); });
      profile.matmuls.push_back({cost::MatmulKind::kForward, spec::Precision::kFp8, op.m, op.n, op.k,
                                 op.forward_flops() / sample.seconds, sample.spread});
    } catch (const c10::Error&) {
      return;  // a device without fp8: found by trying, as precision.h does
    }
  }
}

void measure_host_cost(Sampler& sampler, spec::Precision precision, cost::Profile& profile) {
  constexpr std::int64_t kShallow = 2, kDeep = 10;
  const torch::Dtype dtype = precision == spec::Precision::kBf16 ? torch::kBFloat16 : torch::kFloat32;
  const HostSeconds shallow = host_seconds(sampler, kShallow, dtype);
  const HostSeconds deep = host_seconds(sampler, kDeep, dtype);
  const double operators = static_cast<double>(kDeep - kShallow) * cost::operators_per_layer();
  profile.operator_seconds = std::max(0.0, deep.forward - shallow.forward) / operators;
  const double backward = (deep.both - deep.forward) - (shallow.both - shallow.forward);
  profile.backward_operator_seconds = std::max(0.0, backward) / operators;
}

std::vector<cost::Workload> device_check_workloads(spec::Precision precision, bool quick) {
  std::vector<cost::Workload> workloads;
  const auto add = [&](spec::Model model, std::int64_t micro) {
    cost::Workload workload;
    const std::int64_t sequence = model.max_sequence;
    workload.model = std::move(model);
    workload.batch = {.micro = micro, .accumulation = 1, .global_sequences = micro, .sequence_length = sequence};
    workload.precision = precision;
    workloads.push_back(std::move(workload));
  };
  add(gpt(12, 768, 1024), 16);
  add(llama(8, 2048, 5632, 2048), 4);
  add(llama(12, 1024, 2816, 2048), 8);
  if (quick) return workloads;
  add(llama(3, 4096, 11008, 4096), 2);
  add(gpt(16, 1536, 1024), 16);
  add(llama(16, 2048, 5632, 2048), 8);
  return workloads;
}

}  // namespace lockstep::engine
