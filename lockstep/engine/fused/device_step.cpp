// FusedStep behind the engine's seam (device_step.h), and when a job gets it.
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <fmt/format.h>
#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/engine/device_step.h"
#include "lockstep/engine/fused/step.h"

namespace lockstep::engine {
namespace {

using cuda::FusedOptions;
using cuda::FusedParameters;
using cuda::FusedStep;

// A target that counts for no loss (FusedStep::submit).
constexpr std::int32_t kPadding = -1;

cuda::Recompute recompute_of(plan::Recompute recompute) {
  switch (recompute) {
    case plan::Recompute::kNone:
      return cuda::Recompute::kNone;
    case plan::Recompute::kSelective:
      return cuda::Recompute::kSelective;
    case plan::Recompute::kFull:
      return cuda::Recompute::kFull;
  }
  throw InternalError("unknown recompute");
}

FusedOptions options_of(const plan::Run& run) {
  FusedOptions o;
  o.micro_batch = run.batch.micro;
  o.sequence_length = run.batch.sequence_length;
  o.accumulation = run.most_micro_steps();
  o.precision =
      run.layout.precision == spec::Precision::kFp8 ? cuda::LinearPrecision::kFp8 : cuda::LinearPrecision::kBf16;
  o.recompute = recompute_of(run.layout.recompute);
  o.states = run.optimizer.state_precision == spec::Precision::kBf16 ? cuda::StatePrecision::kBf16
                                                                     : cuda::StatePrecision::kFloat;
  o.beta1 = run.optimizer.beta1;
  o.beta2 = run.optimizer.beta2;
  o.epsilon = run.optimizer.epsilon;
  o.weight_decay = run.optimizer.weight_decay;
  o.norms_decay = run.optimizer.decay == spec::Decay::kAll;
  o.clip = run.optimizer.clip_norm;
  o.gradient_norm = true;  // told with every step, and what is not finite is skipped
  return o;
}

class FusedDeviceStep : public DeviceStep {
 public:
  FusedDeviceStep(const spec::Job& job, const FusedOptions& options, torch::Device device)
      : options_(options),
        precision_(job.precision),
        device_(torch::kCUDA, device.has_index() ? device.index() : c10::cuda::current_device()),
        guard_(device_),
        step_(job.model, options),
        tokens_(step_.shape().rows() * options.accumulation),
        targets_(tokens_.size()) {
    for (const cuda::NamedParameter& p : step_.parameters()) {
      parameters_.push_back({p.name, p.is_norm ? std::vector<std::int64_t>{p.place.in}
                                               : std::vector<std::int64_t>{p.place.out, p.place.in}});
    }
  }

  std::string describe() const override {
    static constexpr const char* kRecompute[] = {"none", "selective", "full"};
    return fmt::format("fused CUDA step, {}, {}recompute {}", spec::to_string(precision_),
                       options_.states == cuda::StatePrecision::kBf16 ? "optimizer state bf16, " : "",
                       kRecompute[static_cast<int>(options_.recompute)]);
  }
  const std::vector<Parameter>& parameters() const override { return parameters_; }
  torch::Device device() const override { return device_; }

  torch::Tensor read(Part part, std::size_t parameter) override {
    if (part != Part::kMaster) return view(part, parameter);
    const auto options = torch::TensorOptions().dtype(torch::kFloat32);
    const std::vector<std::int64_t>& sizes = parameters_[parameter].sizes;
    try {
      torch::Tensor values = torch::empty(sizes, options.device(device_));
      // Its memory may still be in use by what libtorch has queued.
      at::cuda::getCurrentCUDAStream(device_.index()).synchronize();
      step_.save_on_device(step_.parameters()[parameter], values.data_ptr<float>());
      return values;
    } catch (const c10::Error&) {  // no spare memory on the device
      torch::Tensor values = torch::empty(sizes, options);
      step_.save(step_.parameters()[parameter], values.data_ptr<float>());
      return values;
    }
  }

  std::vector<torch::Tensor> read_all(Part part) override {
    if (part != Part::kMaster) return DeviceStep::read_all(part);
    torch::Tensor flat;
    try {
      flat = torch::empty({step_.flat_count()}, torch::TensorOptions().dtype(torch::kFloat32).device(device_));
    } catch (const c10::Error&) {  // no spare memory for all of them
      return DeviceStep::read_all(part);
    }
    at::cuda::getCurrentCUDAStream(device_.index()).synchronize();
    step_.save_all_on_device(flat.data_ptr<float>());
    std::vector<torch::Tensor> all;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const cuda::Placed& place = step_.parameters()[i].place;
      all.push_back(flat.narrow(0, place.offset, place.count()).view(parameters_[i].sizes));
    }
    return all;
  }

  void write(Part part, std::size_t parameter, const torch::Tensor& values) override {
    LOCKSTEP_ASSERT(part != Part::kWeight, "weights are written as masters");
    LOCKSTEP_ASSERT(values.sizes().vec() == parameters_[parameter].sizes, "a value has its parameter's sizes");
    const torch::NoGradGuard no_grad;
    if (part == Part::kMaster) {
      const cuda::NamedParameter& p = step_.parameters()[parameter];
      const bool narrow = values.scalar_type() == torch::kBFloat16;
      const torch::Tensor plain = (narrow ? values.detach() : values.detach().to(torch::kFloat32)).contiguous();
      // Drawn, widened and made contiguous on libtorch's stream, read on the step's own.
      if (plain.is_cuda()) at::cuda::getCurrentCUDAStream(device_.index()).synchronize();
      if (narrow) return step_.load(p, static_cast<const cuda::Bf16*>(plain.data_ptr()));
      return step_.load(p, plain.data_ptr<float>());
    }
    view(part, parameter).copy_(values.detach());
    at::cuda::getCurrentCUDAStream(device_.index()).synchronize();  // the step has a stream of its own
  }

  std::int64_t updates() const override { return step_.updates(); }
  void set_updates(std::int64_t updates) override { step_.set_updates(updates); }

  void submit(const std::vector<data::Batch>& batches, double learning_rate) override {
    std::int64_t row = 0;
    for (const data::Batch& batch : batches) row = add(batch, row);
    pad(row, rows_of_samples(tokens_.size()));
    step_.submit(tokens_.data(), targets_.data(), learning_rate);
  }

  Result wait() override {
    const FusedStep::Result done = step_.wait();
    Result result;
    result.loss = done.loss;
    result.gradient_norm = done.gradient_norm;
    result.skipped = done.skipped;
    result.device_seconds = 1e-3 * (done.gpu_ms + done.input_stall_ms);
    return result;
  }

  Evaluation evaluate(const data::Batch& batch) override {
    pad(add(batch, 0), options_.micro_batch);
    const FusedStep::Evaluation sums = step_.evaluate(tokens_.data(), targets_.data());
    std::int64_t counted = 0;
    for (std::int64_t i = 0; i < step_.shape().rows(); ++i) counted += targets_[i] >= 0 ? 1 : 0;
    return {sums.loss, static_cast<double>(counted), sums.hits};
  }

  std::string choices() const override { return step_.gemm_table(); }
  void adopt_choices(const std::string& text) override { step_.use_gemm_table(text); }

  double peak_memory_bytes() const override { return static_cast<double>(step_.memory().total()); }

 private:
  std::int64_t rows_of_samples(std::size_t tokens) const {
    return static_cast<std::int64_t>(tokens) / step_.shape().seq;
  }

  // A view of the step's own memory.
  torch::Tensor view(Part part, std::size_t parameter) const {
    const auto which = part == Part::kWeight        ? FusedParameters::Part::kWeight
                       : part == Part::kFirstMoment ? FusedParameters::Part::kFirstMoment
                                                    : FusedParameters::Part::kSecondMoment;
    const bool narrow = part == Part::kWeight || options_.states == cuda::StatePrecision::kBf16;
    return torch::from_blob(step_.memory(step_.parameters()[parameter], which), parameters_[parameter].sizes,
                            torch::TensorOptions().dtype(narrow ? torch::kBFloat16 : torch::kFloat32).device(device_));
  }

  // The batch's samples from sequence `row` on; returns the next free one. Samples may be shorter than the step's
  // sequences: what is behind them counts for no loss, and nothing before looks there.
  std::int64_t add(const data::Batch& batch, std::int64_t row) {
    if (batch.samples == 0) return row;
    const std::int64_t seq = step_.shape().seq, width = batch.input.size(1);
    if (row + batch.samples > rows_of_samples(tokens_.size()) || width > seq) {
      throw bad_input(fmt::format("a batch of {} sequences of {} tokens came where the step has {} of {}",
                                  row + batch.samples, width, rows_of_samples(tokens_.size()), seq),
                      "check batch.micro and batch.sequence_length");
    }
    const torch::Tensor input = batch.input.contiguous(), target = batch.target.contiguous();
    const std::int64_t* from = input.data_ptr<std::int64_t>();
    const std::int64_t* to = target.data_ptr<std::int64_t>();
    for (std::int64_t sample = 0; sample < batch.samples; ++sample, ++row) {
      for (std::int64_t i = 0; i < seq; ++i) {
        tokens_[row * seq + i] = i < width ? static_cast<std::int32_t>(from[sample * width + i]) : 0;
        targets_[row * seq + i] = i < width ? target_of(to[sample * width + i]) : kPadding;
      }
    }
    return row;
  }
  std::int32_t target_of(std::int64_t target) const {
    if (target == data::kIgnoredTarget) return kPadding;
    if (target < 0 || target >= step_.shape().vocab) {
      throw bad_input(fmt::format("target {} is outside the vocabulary", target), "check the data and model.vocab");
    }
    return static_cast<std::int32_t>(target);
  }
  void pad(std::int64_t row, std::int64_t rows) {
    const std::int64_t seq = step_.shape().seq;
    std::fill(tokens_.begin() + row * seq, tokens_.begin() + rows * seq, 0);
    std::fill(targets_.begin() + row * seq, targets_.begin() + rows * seq, kPadding);
  }

  FusedOptions options_;
  spec::Precision precision_;
  torch::Device device_;
  c10::cuda::CUDAGuard guard_;  // the step takes the current device
  FusedStep step_;
  std::vector<Parameter> parameters_;
  std::vector<std::int32_t> tokens_, targets_;  // [accumulation * micro_batch, seq]
};

}  // namespace

DeviceStepChoice make_device_step(const spec::Job& job, const plan::Run& run, torch::Device device) {
  if (auto reason = reason_for_general_path(run, device)) return {nullptr, *reason};
  const FusedOptions options = options_of(run);
  try {
    cuda::fused_shape(run.model, options);
  } catch (const UserError& error) {
    const std::string text = error.what();
    return {nullptr, text.substr(0, text.size() - (error.fix().empty() ? 0 : error.fix().size() + 2))};
  }
  return {std::make_unique<FusedDeviceStep>(job, options, device), {}};
}

}  // namespace lockstep::engine
