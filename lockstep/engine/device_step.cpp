#include "lockstep/engine/device_step.h"

#include <map>

#include "lockstep/base/error.h"
#include "lockstep/cost/fused/run.h"
#include "lockstep/engine/pretrained.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/model.h"

namespace lockstep::engine {
namespace {

constexpr const char* kStep = "optimizer.step";
constexpr const char* kFirst = "optimizer.exp_avg.";
constexpr const char* kSecond = "optimizer.exp_avg_sq.";

const torch::Tensor* find(const parallel::TensorMap& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  return found == tensors.end() ? nullptr : &found->second;
}

const torch::Tensor& require(const torch::Tensor* tensor, const std::string& name,
                             const std::vector<std::int64_t>& sizes) {
  if (tensor == nullptr || tensor->sizes().vec() != sizes) {
    throw bad_input("the checkpoint has no tensor " + name + " of the model's size",
                    "it is of another model or optimizer; check the job");
  }
  return *tensor;
}

}  // namespace

std::optional<std::string> reason_for_general_path(const spec::Job& job, const plan::Layout& layout,
                                                   torch::Device device) {
  if (!device.is_cuda()) return "the device is no GPU";
  plan::Layout run = layout;
  run.precision = job.precision;
  if (auto problem = cost::fused_problem(job.model, run, job.optimizer.kind, job.lora.rank > 0)) return problem;
  if (job.activation_offload) return "the job offloads to host memory";
  if (job.communication.compression != spec::Compression::kNone) return "the job compresses gradients";
  return std::nullopt;
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
  const std::vector<std::string> missing = load_pretrained(*model, job.weights).initial;
  const auto values = model->named_parameters();
  for (std::size_t i = 0; i < step.parameters().size(); ++i) {
    const DeviceStep::Parameter& parameter = step.parameters()[i];
    const torch::Tensor* value = values.find(parameter.name);
    LOCKSTEP_ASSERT(value != nullptr && value->sizes().vec() == parameter.sizes, "the step has the model's parameters");
    step.write(DeviceStep::Part::kMaster, i, *value);
  }
  return missing;
}

parallel::TensorMap weights_of(DeviceStep& step) {
  parallel::TensorMap weights;
  for (std::size_t i = 0; i < step.parameters().size(); ++i) {
    weights[step.parameters()[i].name] = step.read(DeviceStep::Part::kWeight, i);
  }
  return weights;
}

parallel::TensorMap optimizer_state_of(DeviceStep& step) {
  parallel::TensorMap state;
  for (std::size_t i = 0; i < step.parameters().size(); ++i) {
    const std::string& name = step.parameters()[i].name;
    state[kMasterPrefix + name] = step.read(DeviceStep::Part::kMaster, i);
    state[kFirst + name] = step.read(DeviceStep::Part::kFirstMoment, i);
    state[kSecond + name] = step.read(DeviceStep::Part::kSecondMoment, i);
  }
  state[kStep] = torch::tensor(step.updates(), torch::TensorOptions().dtype(torch::kInt64));
  return state;
}

void load_state(DeviceStep& step, const parallel::TensorMap& weights, const parallel::TensorMap& optimizer) {
  const torch::Tensor* updates = find(optimizer, kStep);
  if (updates == nullptr || updates->numel() != 1 || updates->scalar_type() != torch::kInt64 ||
      updates->item<std::int64_t>() < 0) {
    throw bad_input(std::string("tensor ") + kStep + " is missing or malformed", "use a checkpoint of the same job");
  }
  const auto part = [&](const DeviceStep::Parameter& parameter, DeviceStep::Part which) -> const torch::Tensor& {
    const auto of_optimizer = [&](const char* prefix) { return find(optimizer, prefix + parameter.name); };
    if (which == DeviceStep::Part::kFirstMoment)
      return require(of_optimizer(kFirst), kFirst + parameter.name, parameter.sizes);
    if (which == DeviceStep::Part::kSecondMoment)
      return require(of_optimizer(kSecond), kSecond + parameter.name, parameter.sizes);
    const torch::Tensor* master = of_optimizer(kMasterPrefix);
    return require(master != nullptr ? master : find(weights, parameter.name), parameter.name, parameter.sizes);
  };
  constexpr DeviceStep::Part kParts[] = {DeviceStep::Part::kMaster, DeviceStep::Part::kFirstMoment,
                                         DeviceStep::Part::kSecondMoment};
  for (const auto& parameter : step.parameters())
    for (const DeviceStep::Part which : kParts) part(parameter, which);  // all are there
  for (std::size_t i = 0; i < step.parameters().size(); ++i)
    for (const DeviceStep::Part which : kParts) step.write(which, i, part(step.parameters()[i], which));
  step.set_updates(updates->item<std::int64_t>());
}

}  // namespace lockstep::engine
