#include "lockstep/engine/fused_executor.h"

#include <algorithm>
#include <map>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/engine/pretrained.h"
#include "lockstep/engine/sharded_optimizer.h"
#include "lockstep/engine/whole_tensors.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/model.h"
#include "lockstep/plan/run.h"
#include "lockstep/telemetry/span_log.h"

namespace lockstep::engine {
namespace {

using namespace state_name;

using checkpoint::TensorKind;

struct PartName {
  DeviceStep::Part part;
  const char* prefix;
};
constexpr PartName kOptimizerParts[] = {{DeviceStep::Part::kMaster, kMaster},
                                        {DeviceStep::Part::kFirstMoment, kFirstMoment},
                                        {DeviceStep::Part::kSecondMoment, kSecondMoment}};

// Where a part is saved: masters of an fp32 run are its weights.
std::pair<TensorKind, std::string> place_of(const checkpoint::TensorSource& tensors, const PartName& part,
                                            const std::string& name) {
  const std::string full = part.prefix + name;
  if (part.part == DeviceStep::Part::kMaster && tensors.find(TensorKind::kOptimizer, full) == nullptr)
    return {TensorKind::kModel, name};
  return {TensorKind::kOptimizer, full};
}

}  // namespace

std::optional<std::string> reason_for_general_path(const plan::Run& run, torch::Device device) {
  if (!device.is_cuda()) return "the device is not a GPU";
  return plan::why_not_fused(run);
}

namespace {

// One parameter at a time, so the device needs room for the largest alone.
void draw_initial_values(DeviceStep& step, const spec::Job& job) {
  nn::BuildOptions build;
  build.device = torch::kMeta;
  build.dtype = torch::kBFloat16;  // as the general path draws them
  const auto model = nn::build_model(job.model, build);
  std::map<std::string, nn::DeclaredParameter> declared;
  for (const nn::DeclaredParameter& parameter : nn::declared_parameters(*model)) declared[parameter.name] = parameter;
  for (std::size_t i = 0; i < step.parameters().size(); ++i) {
    const auto& [name, sizes] = step.parameters()[i];
    const auto found = declared.find(name);
    LOCKSTEP_ASSERT(found != declared.end() && found->second.tensor.sizes().vec() == sizes,
                    "the step has the model's parameters");
    torch::Tensor values =
        torch::empty({found->second.tensor.numel()}, torch::TensorOptions().dtype(build.dtype).device(step.device()));
    found->second.initial(values, 0, static_cast<std::uint64_t>(job.seed), name);
    step.write(DeviceStep::Part::kMaster, i, values.view(sizes));
  }
}

}  // namespace

std::vector<std::string> load_initial_values(DeviceStep& step, const spec::Job& job) {
  const torch::NoGradGuard no_grad;
  if (job.weights.empty()) {
    draw_initial_values(step, job);
    return {};
  }
  nn::BuildOptions build;
  build.seed = static_cast<std::uint64_t>(job.seed);
  const auto model = nn::build_model(job.model, build);  // fp32, as files are read
  std::vector<std::string> missing = load_pretrained(*model, job.weights).initial;
  const auto values = model->named_parameters();
  for (std::size_t i = 0; i < step.parameters().size(); ++i) {
    const DeviceStep::Parameter& parameter = step.parameters()[i];
    const torch::Tensor* value = values.find(parameter.name);
    LOCKSTEP_ASSERT(value != nullptr && value->sizes().vec() == parameter.sizes, "the step has the model's parameters");
    step.write(DeviceStep::Part::kMaster, i, *value);
  }
  return missing;
}

FusedExecutor::FusedExecutor(const spec::Job& job, std::unique_ptr<DeviceStep> step)
    : job_(job), step_(std::move(step)) {}

StepResult FusedExecutor::step(const StepInput& input) {
  if (input.before_update) input.before_update();
  // Forward, backward and update are one program of the device.
  const telemetry::SpanScope span({.name = "fused step"}, telemetry::Phase::kCompute);
  step_->submit(staged_, input.learning_rate);
  staged_.clear();
  const double submitted = monotonic_seconds();
  if (input.meanwhile) input.meanwhile();
  const double fetching = monotonic_seconds() - submitted;
  const DeviceStep::Result done = step_->wait();
  if (telemetry::SpanLog* const log = telemetry::SpanLog::current()) {
    const double end = monotonic_seconds();  // by the device's own clock it took so long
    log->add({.lane = telemetry::SpanLane::kDevice, .name = "fused step"}, end - done.device_seconds, end);
  }
  scaler_.update(!done.skipped);
  completed_ = input.step + 1;
  StepResult result;
  result.loss = done.loss;
  result.gradient_norm = done.gradient_norm;
  result.learning_rate = input.learning_rate;
  result.skipped = done.skipped;
  result.wishes = input.wishes;
  // The loader held the device up only as far as fetching outlasted its work.
  result.data_seconds = std::max(0.0, fetching - done.device_seconds);
  return result;
}

Evaluated FusedExecutor::evaluate(const data::Batch& batch, std::int64_t, bool with_output) {
  if (with_output) {
    throw bad_input(
        "a metric of evaluation.metrics looks at the model's output, which the fused CUDA step keeps to itself",
        "add --general-step, or leave the metric out");
  }
  if (batch.samples == 0) return {};
  const DeviceStep::Evaluation sums = step_->evaluate(batch);
  return {{sums.loss, static_cast<std::int64_t>(sums.targets), static_cast<std::int64_t>(sums.correct)}, {}, {}};
}

void FusedExecutor::hold(checkpoint::CheckpointPart& part) const {
  const auto add = [&](TensorKind kind, const std::string& prefix, DeviceStep::Part which) {
    const std::vector<torch::Tensor> values = step_->read_all(which);
    for (std::size_t i = 0; i < values.size(); ++i) {
      part.pieces.push_back(checkpoint::whole_piece(kind, prefix + step_->parameters()[i].name, values[i]));
    }
  };
  add(TensorKind::kModel, "", DeviceStep::Part::kWeight);
  for (const PartName& which : kOptimizerParts) add(TensorKind::kOptimizer, which.prefix, which.part);
  const torch::Tensor updates = torch::tensor(step_->updates(), torch::TensorOptions().dtype(torch::kInt64));
  part.pieces.push_back(checkpoint::whole_piece(TensorKind::kOptimizer, kSteps, updates));
  add_whole(scaler_.state(), TensorKind::kOptimizer, part);
  part.facts.extra["device_step"] = step_->choices();
}

// All is there before anything changes; then one tensor at a time.
std::string FusedExecutor::restore(const SavedState& saved, bool) {
  const checkpoint::TensorSource& tensors = saved.tensors;
  const std::int64_t updates = saved_updates(tensors);
  for (const DeviceStep::Parameter& parameter : step_->parameters()) {
    for (const PartName& which : kOptimizerParts) {
      const auto [kind, name] = place_of(tensors, which, parameter.name);
      const auto* facts = tensors.find(kind, name);
      if (facts == nullptr || facts->sizes != parameter.sizes) {
        throw bad_input("the checkpoint has no tensor " + name + " of the model's size",
                        "it is of another model or optimizer; check the job");
      }
    }
  }
  for (std::size_t i = 0; i < step_->parameters().size(); ++i) {
    for (const PartName& which : kOptimizerParts) {
      const auto [kind, name] = place_of(tensors, which, step_->parameters()[i].name);
      step_->write(which.part, i, tensors.read_whole(kind, name));
    }
  }
  step_->set_updates(updates);
  step_->adopt_choices(saved.facts.extra.value("device_step", ""));
  scaler_.load_state(read_like(scaler_.state(), tensors, TensorKind::kOptimizer));
  completed_ = saved.facts.step;
  staged_.clear();
  return {};
}

void FusedExecutor::export_weights(const std::string& folder, const std::string& tokenizer_folder) {
  parallel::TensorMap weights;
  for (std::size_t i = 0; i < step_->parameters().size(); ++i) {
    weights[step_->parameters()[i].name] = step_->read(DeviceStep::Part::kWeight, i);
  }
  export_weights_of(weights, job_.model, folder, tokenizer_folder);
}

ExecutorFigures FusedExecutor::figures() const {
  ExecutorFigures figures;
  figures.skipped_steps = scaler_.skipped_steps();
  figures.peak_memory_bytes = step_->peak_memory_bytes();
  return figures;
}

}  // namespace lockstep::engine
