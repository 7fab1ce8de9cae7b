#include "lockstep/engine/calibrate/steps.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>

#include "lockstep/engine/precision.h"
#include "lockstep/engine/sharded_optimizer.h"
#include "lockstep/nn/model.h"
#include "lockstep/nn/torch_compat.h"
#include "lockstep/parallel/parallel_model.h"
#include "lockstep/plan/layout.h"

namespace lockstep::engine {
namespace {

using torch::Tensor;

spec::Model small_gpt(std::int64_t layers, std::int64_t hidden, std::int64_t sequence) {
  spec::Model model;
  model.name = "check-gpt-" + std::to_string(layers) + "x" + std::to_string(hidden);
  model.arch = spec::Arch::kGpt;
  model.layers = layers;
  model.hidden = hidden;
  model.head_dim = 32;
  model.heads = model.kv_heads = hidden / 32;
  model.ffn_hidden = 4 * hidden;
  model.vocab = 256;
  model.max_sequence = sequence;
  model.tied_embeddings = true;
  return model;
}

spec::Model small_cnn(std::int64_t image_size) {
  spec::Model model;
  model.name = "check-cnn-" + std::to_string(image_size);
  model.arch = spec::Arch::kCifarCnn;
  model.image_size = image_size;
  model.image_channels = 3;
  model.classes = 10;
  return model;
}

parallel::MicroBatch random_batch(const cost::Workload& workload, torch::Device device) {
  const std::int64_t samples = workload.batch.micro;
  const spec::Model& model = workload.model;
  const auto options = torch::TensorOptions().device(device);
  const auto integers = options.dtype(torch::kInt64);
  if (model.is_language_model()) {
    const Tensor tokens = torch::randint(0, model.vocab, {samples, workload.batch.sequence_length}, integers);
    return {tokens, tokens, {}};
  }
  return {torch::rand({samples, model.image_channels, model.image_size, model.image_size}, options),
          torch::randint(0, model.classes, {samples}, integers),
          {}};
}

// Products that keep a rank busy for about `seconds`, as one call.
class Busy {
 public:
  Busy(Sampler& sampler, double seconds) : a_(torch::rand({256, 256})), b_(torch::rand({256, 256})) {
    const Sample one = sampler.independent([this] { at::mm(a_, b_); });
    repeats_ = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(seconds / one.seconds)));
  }
  void operator()() const {
    for (std::int64_t i = 0; i < repeats_; ++i) at::mm(a_, b_);
  }

 private:
  Tensor a_, b_;
  std::int64_t repeats_ = 1;
};

}  // namespace

void measure_collectives(Sampler& sampler, comm::Communicator& communicator, bool quick, cost::Profile& profile) {
  if (communicator.size() < 2) return;
  const std::vector<std::int64_t> sizes = quick
                                              ? std::vector<std::int64_t>{1 << 10, 1 << 16, 1 << 20, 1 << 23}
                                              : std::vector<std::int64_t>{1 << 8,  1 << 10, 1 << 12, 1 << 14, 1 << 16,
                                                                          1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26};
  for (const std::int64_t bytes : sizes) {
    Tensor buffer = torch::zeros({bytes / 4});
    const comm::Buffer memory{buffer.data_ptr(), bytes / 4, comm::DType::kF32};
    const Sample sample =
        sampler.collective([&] { communicator.all_reduce(memory, comm::ReduceOp::kSum, sampler.op_options()).wait(); });
    profile.collectives.push_back(
        {cost::CollectiveOp::kAllReduce, communicator.size(), bytes, sample.seconds, sample.spread});
  }
}

void measure_overlap(Sampler& sampler, comm::Communicator& communicator, cost::Profile& profile) {
  if (communicator.size() < 2) return;
  const torch::NoGradGuard no_grad;
  constexpr std::int64_t kElements = 1 << 20;
  Tensor buffer = torch::zeros({kElements});
  const comm::Buffer memory{buffer.data_ptr(), kElements, comm::DType::kF32};
  const Sample reduce =
      sampler.collective([&] { communicator.all_reduce(memory, comm::ReduceOp::kSum, sampler.op_options()).wait(); });
  const Busy busy(sampler, reduce.seconds);
  const Sample compute = sampler.collective([&] { busy(); });
  const Sample both = sampler.collective([&] {
    comm::Work work = communicator.all_reduce(memory, comm::ReduceOp::kSum, sampler.op_options());
    busy();
    work.wait();
  });
  const double hidden = compute.seconds + reduce.seconds - both.seconds;
  profile.overlap = std::clamp(hidden / std::min(compute.seconds, reduce.seconds), 0.0, 1.0);
}

std::vector<cost::Workload> check_workloads(bool transformers, bool images, spec::Precision precision) {
  std::vector<cost::Workload> workloads;
  const auto add = [&](spec::Model model, std::int64_t micro, std::int64_t sequence) {
    cost::Workload workload;
    workload.model = std::move(model);
    workload.batch = {.micro = micro, .accumulation = 1, .global_sequences = micro, .sequence_length = sequence};
    workload.precision = precision;
    workload.bucket_mib = 1.0;  // several buckets even for so small a model
    workloads.push_back(std::move(workload));
  };
  if (transformers) {
    add(small_gpt(2, 128, 128), 4, 128);
    add(small_gpt(2, 256, 64), 4, 64);
    add(small_gpt(3, 160, 128), 3, 128);
    add(small_gpt(2, 224, 256), 1, 256);
  }
  if (images) {
    add(small_cnn(16), 8, 0);
    add(small_cnn(32), 4, 0);
    add(small_cnn(24), 8, 0);
  }
  return workloads;
}

std::vector<cost::Workload> related_workloads(const std::vector<cost::Workload>& workloads) {
  std::vector<cost::Workload> related;
  for (const cost::Workload& workload : workloads) {
    const auto add = [&](std::int64_t layers, std::int64_t micro) {
      cost::Workload other = workload;
      other.model.layers = layers;
      other.model.name = fmt::format("related-{}x{}-micro-{}", layers, workload.model.hidden, micro);
      other.batch = {.micro = micro,
                     .accumulation = 1,
                     .global_sequences = micro,
                     .sequence_length = workload.batch.sequence_length};
      related.push_back(std::move(other));
    };
    const std::int64_t layers = workload.model.layers, micro = workload.batch.micro;
    if (workload.model.is_image_model()) {
      add(0, 2 * micro);
      add(0, std::max<std::int64_t>(1, micro / 2));
      add(0, 3 * micro);
      continue;
    }
    const std::int64_t shallow = std::max<std::int64_t>(1, layers / 2);
    add(shallow, shallow < layers ? micro : micro + 1);
    add(layers + 1, micro);
    add(shallow, 2 * micro);
  }
  return related;
}

void measure_check(Sampler& sampler, comm::Communicator& communicator, const cost::Workload& workload,
                   cost::Profile& profile) {
  const torch::Device device = sampler.device();
  const PrecisionPolicy policy = precision_policy(workload.precision, device);
  nn::compat::reset_peak_allocated(device);
  plan::Layout layout;
  layout.dp = communicator.size();
  layout.precision = workload.precision;
  parallel::ParallelModelOptions options;
  options.layout = layout;
  options.dtype = policy.model;
  options.gradient_dtype = policy.gradient;
  options.master_dtype = policy.master;
  options.device = device;
  options.seed = 1;
  options.buckets.bucket_mib = workload.bucket_mib;
  parallel::ParallelModel model(workload.model, options, communicator);
  ShardedOptimizer optimizer({}, model);
  parallel::MicroBatch batch = random_batch(workload, device);
  batch.context.seed = 1;
  batch.loss_weight = 1.0 / static_cast<double>(batch.target.numel());
  const Sample measured = sampler.collective([&] {
    model.run({batch});
    ++batch.context.step;
    optimizer.step(1e-4, clip_factor(std::sqrt(model.squared_norm()), 0.0));
  });
  cost::CalibrationCheck check;
  check.name = workload.model.name;
  check.family = workload.model.is_language_model() ? cost::CheckFamily::kTransformer : cost::CheckFamily::kImage;
  check.predicted_seconds = cost::price_step(profile, workload, layout).total();
  check.measured_seconds = measured.seconds;
  check.spread = measured.spread;
  check.peak_bytes = nn::compat::peak_allocated_bytes(device);
  check.workload = cost::CheckWorkload{.model = workload.model,
                                       .precision = workload.precision,
                                       .ranks = communicator.size(),
                                       .micro = workload.batch.micro,
                                       .accumulation = workload.batch.accumulation,
                                       .sequence_length = workload.batch.sequence_length};
  profile.checks.push_back(std::move(check));
}

}  // namespace lockstep::engine
