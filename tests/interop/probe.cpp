// interop_probe FOLDER: what our models compute, for a comparison with PyTorch (compare_with_*.py).
//
// FOLDER holds settings.json {"model": file or folder under FOLDER, "dtype": "fp32" | "fp64", "learning_rate": x,
// "padding_id": token (-1: none)}, model.safetensors (all weights) and batches.safetensors (inputs [steps, ...],
// targets [steps, ...]). The probe writes
// result.safetensors: `logits` and `loss` (mean) of the first batch, `gradient.NAME` of every parameter, `state.NAME`
// of every buffer after that batch, and `losses` [steps], the loss before each AdamW step.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/local.h"
#include "lockstep/engine/sharded_optimizer.h"
#include "lockstep/nn/file_layout.h"
#include "lockstep/nn/hf_weights.h"
#include "lockstep/nn/language_model.h"
#include "lockstep/spec/model.h"

namespace {

namespace fs = std::filesystem;
using namespace lockstep;
using torch::Tensor;

struct Experiment {
  spec::Model spec;
  torch::Dtype dtype;
  double learning_rate;
  std::int64_t padding_id;
  checkpoint::TensorMap weights;
  Tensor inputs, targets;
};

Experiment read_experiment(const fs::path& folder) {
  const nlohmann::json settings = read_json_file(folder / "settings.json");
  const auto batches = checkpoint::SafetensorsFile::open(folder / "batches.safetensors");
  return {spec::load_model(folder / settings.at("model").get<std::string>()),
          settings.at("dtype") == "fp64" ? torch::kDouble : torch::kFloat,
          settings.at("learning_rate").get<double>(),
          settings.at("padding_id").get<std::int64_t>(),
          checkpoint::SafetensorsFile::open(folder / "model.safetensors").read_all(),
          batches.read("inputs"),
          batches.read("targets")};
}

std::shared_ptr<nn::TrainableModel> loaded_model(const Experiment& experiment) {
  auto model = nn::build_model(experiment.spec, {.dtype = experiment.dtype});
  nn::load_weights(*model, experiment.weights, "model.safetensors");
  return model;
}

// Backward of the mean loss; returns that mean.
Tensor backward(nn::TrainableModel& model, const Experiment& experiment, std::int64_t step) {
  const nn::LossResult result = model.loss(experiment.inputs[step], experiment.targets[step],
                                           {.step = step, .padding_id = experiment.padding_id});
  const Tensor mean = result.loss_sum / static_cast<double>(result.count);
  mean.backward();
  return mean.detach();
}

void first_batch(const Experiment& experiment, checkpoint::TensorMap& out) {
  {
    const torch::NoGradGuard no_grad;
    out["logits"] = loaded_model(experiment)->forward(experiment.inputs[0], {.padding_id = experiment.padding_id});
  }
  const auto model = loaded_model(experiment);
  out["loss"] = backward(*model, experiment, 0);
  nn::TensorMap gradients;
  for (const auto& entry : model->named_parameters()) gradients[entry.key()] = entry.value().grad();
  for (const auto& [name, gradient] : nn::to_file_tensors(std::move(gradients), experiment.spec)) {
    out["gradient." + name] = gradient;
  }
  for (const auto& entry : model->named_buffers()) out["state." + entry.key()] = entry.value();
}

// As the engine trains: the same weights in one flat shard.
void train(const Experiment& experiment, checkpoint::TensorMap& out) {
  comm::LocalWorld world(1);
  parallel::ParallelModelOptions options;
  options.dtype = options.gradient_dtype = options.master_dtype = experiment.dtype;
  parallel::ParallelModel model(experiment.spec, options, world.communicator(0));
  nn::load_weights(*model.models().front(), experiment.weights, "model.safetensors");
  spec::Optimizer settings;  // torch.optim.AdamW's defaults
  settings.kind = spec::OptimizerKind::kAdamW;
  engine::ShardedOptimizer optimizer(settings, model);
  std::vector<Tensor> losses;
  for (std::int64_t step = 0; step < experiment.inputs.size(0); ++step) {
    parallel::MicroBatch batch{experiment.inputs[step], experiment.targets[step], {}};
    batch.context.step = step;
    batch.context.padding_id = experiment.padding_id;
    if (experiment.spec.arch == spec::Arch::kBert && experiment.padding_id >= 0) {
      batch.context.lengths = nn::lengths_without_padding(batch.input, experiment.padding_id);
    }
    const double targets = static_cast<double>((batch.target != nn::kIgnoredTarget).sum().item<std::int64_t>());
    batch.loss_weight = 1.0 / targets;
    losses.push_back(torch::tensor(model.run({batch}).loss / targets, experiment.dtype));
    optimizer.step(experiment.learning_rate, 1.0);
  }
  out["losses"] = torch::stack(losses);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: interop_probe FOLDER\n");
    return 2;
  }
  try {
    const fs::path folder = argv[1];
    const Experiment experiment = read_experiment(folder);
    checkpoint::TensorMap out;
    first_batch(experiment, out);
    train(experiment, out);
    checkpoint::write_safetensors(folder / "result.safetensors", out);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "interop_probe: %s\n", error.what());
    return 1;
  }
}
