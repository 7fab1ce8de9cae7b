// interop_layout_probe CASE LAYOUT ACCUMULATION OUT: what a Hugging Face folder computes under a layout, for a
// comparison with transformers (compare_layouts.py). The layout's ranks are threads of this process.
//
// CASE is a folder of make_models.py: model/, expected.safetensors (input_ids, targets) and settings.json (steps of
// AdamW, padding_id). The batch is dealt out over data ranks and ACCUMULATION micro-steps. OUT must be new; it gets
//   imported/           the folder exported as it was read
//   trained/            the same after the steps
//   imported-adapter/, trained-adapter/  where settings.json has `lora`: CASE/adapter, which is then trained, likewise
//   result.safetensors  logits before the steps and trained_logits after them, of the whole batch in its order; loss of
//                       every step; gradient.NAME of the first
#include <ATen/Parallel.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/json.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/local.h"
#include "lockstep/engine/peft.h"
#include "lockstep/engine/pretrained.h"
#include "lockstep/engine/sharded_executor.h"
#include "lockstep/nn/file_layout.h"
#include "lockstep/nn/language_model.h"
#include "lockstep/plan/layout.h"
#include "lockstep/spec/hf_config.h"

namespace {

namespace fs = std::filesystem;
using namespace lockstep;
using torch::Tensor;

struct Experiment {
  spec::Job job;
  plan::Layout layout;
  std::int64_t padding_id = -1;
  std::int64_t steps = 1;
  Tensor tokens;   // [samples, seq]
  Tensor targets;  // [samples, seq] or [samples]
  fs::path out;
};

struct Result {
  std::mutex mutex;
  checkpoint::TensorMap tensors;
};

Experiment read_experiment(const fs::path& folder, const std::string& layout, std::int64_t accumulation,
                           const fs::path& out) {
  const nlohmann::json settings = read_json_file(folder / "settings.json");
  const auto expected = checkpoint::SafetensorsFile::open(folder / "expected.safetensors");
  Experiment experiment;
  experiment.layout = plan::parse_layout(layout);
  experiment.padding_id = settings.at("padding_id").get<std::int64_t>();
  experiment.steps = settings.at("steps").get<std::int64_t>();
  experiment.tokens = expected.read("input_ids");
  experiment.targets = expected.read("targets");
  experiment.out = out;
  spec::Job& job = experiment.job;
  job.weights = (folder / "model").string();
  job.model = spec::read_hf_config(job.weights);
  if (const auto lora = settings.find("lora"); lora != settings.end()) {
    job.weights = (folder / "adapter").string();
    job.lora = {lora->at("rank"), lora->at("alpha"), lora->at("targets")};
  }
  job.batch.accumulation = accumulation;
  job.batch.micro = experiment.tokens.size(0) / (experiment.layout.data_ranks() * accumulation);
  job.batch.sequence_length = experiment.tokens.size(1);
  job.optimizer.learning_rate = settings.at("learning_rate").get<double>();
  job.optimizer.beta1 = settings.at("betas").at(0).get<double>();
  job.optimizer.beta2 = settings.at("betas").at(1).get<double>();
  job.optimizer.epsilon = settings.at("epsilon").get<double>();
  job.optimizer.weight_decay = settings.at("weight_decay").get<double>();
  return experiment;
}

// Micro-batch `micro` of a data rank, cut as data::Loader cuts a global batch.
data::Batch batch_of(const Experiment& experiment, std::int64_t micro, std::int64_t data_rank) {
  const spec::Batch& sizes = experiment.job.batch;
  data::Batch batch;
  batch.first_index = (micro * experiment.layout.data_ranks() + data_rank) * sizes.micro;
  batch.input = experiment.tokens.narrow(0, batch.first_index, sizes.micro).clone();
  batch.target = experiment.targets.narrow(0, batch.first_index, sizes.micro).clone();
  batch.samples = sizes.micro;
  batch.global_samples = experiment.tokens.size(0);
  batch.micro_step = micro;
  batch.last_of_step = micro == sizes.accumulation - 1;
  return batch;
}

std::vector<data::Batch> batches_of(const Experiment& experiment, std::int64_t data_rank) {
  std::vector<data::Batch> batches;
  for (std::int64_t micro = 0; micro < experiment.job.batch.accumulation; ++micro) {
    batches.push_back(batch_of(experiment, micro, data_rank));
  }
  return batches;
}

// Puts this rank's logits into their place in those of the whole batch; what no rank has computed stays NaN.
void place(const Tensor& logits, const Tensor& positions, std::int64_t first_sample, const Experiment& experiment,
           Tensor& whole) {
  if (!whole.defined()) {
    std::vector<std::int64_t> sizes = logits.sizes().vec();
    sizes[0] = experiment.tokens.size(0);
    if (sizes.size() == 3) sizes[1] = experiment.tokens.size(1);
    whole = torch::full(sizes, NAN, logits.options());
  }
  Tensor samples = whole.narrow(0, first_sample, logits.size(0));
  if (positions.defined()) {
    samples.index_copy_(1, positions, logits);
  } else {
    samples.copy_(logits);
  }
}

// Collective. `name` is filled by one of the ranks that have each row.
void predict(const Experiment& experiment, parallel::ParallelModel& model, const std::string& name, Result& result) {
  for (const data::Batch& batch : batches_of(experiment, model.groups().data_rank)) {
    parallel::MicroBatch micro;
    micro.input = batch.input;
    micro.target = batch.target;
    micro.context.training = false;
    micro.context.first_index = batch.first_index;
    micro.context.padding_id = experiment.padding_id;
    if (experiment.padding_id >= 0) {
      micro.context.lengths = nn::lengths_without_padding(batch.input, experiment.padding_id);
    }
    micro = model.rows_of(std::move(micro));
    const Tensor logits = model.predict(micro);
    if (!model.has_loss()) continue;
    const std::lock_guard lock(result.mutex);
    place(logits, micro.context.positions, batch.first_index, experiment, result.tensors[name]);
  }
}

// Collective. The model as it is, and its adapters where it has some, beside it as NAME-adapter.
void export_all(const Experiment& experiment, parallel::ParallelModel& model, const std::string& name) {
  const spec::Job& job = experiment.job;
  engine::export_pretrained(model, job.model, experiment.out / name, job.weights);
  if (job.lora.rank == 0) return;
  const parallel::TensorMap weights = model.assemble([](const parallel::FlatShard& shard) { return shard.weights(); });
  if (model.groups().world.rank() != 0) return;
  engine::export_adapter(weights, job.model, job.lora, engine::base_of_adapter(job.weights),
                         experiment.out / (name + "-adapter"));
}

void run_rank(const Experiment& experiment, comm::Communicator world, int rank, Result& result) {
  const spec::Job& job = experiment.job;
  engine::ShardedExecutor executor(job, plan::run_of(job, experiment.layout), std::move(world),
                                   {.padding_id = experiment.padding_id});
  parallel::ParallelModel& model = executor.model();
  predict(experiment, model, "logits", result);
  export_all(experiment, model, "imported");
  std::vector<double> losses;
  parallel::TensorMap gradients;  // of the first step
  for (std::int64_t number = 0; number < experiment.steps; ++number) {
    executor.stage(batches_of(experiment, model.groups().data_rank));
    const engine::StepResult step = executor.step({.step = number, .learning_rate = job.optimizer.learning_rate});
    losses.push_back(step.loss + step.auxiliary_loss);
    if (number == 0 && job.lora.rank == 0)
      gradients = model.assemble([](const parallel::FlatShard& shard) { return shard.gradient().clone(); });
  }
  predict(experiment, model, "trained_logits", result);
  export_all(experiment, model, "trained");
  if (rank != 0) return;
  const std::lock_guard lock(result.mutex);
  result.tensors["loss"] = torch::tensor(losses, torch::kDouble);
  for (const auto& [name, gradient] : nn::to_file_tensors(gradients, job.model))
    result.tensors["gradient." + name] = gradient;
}

// The error of every rank on a line of its own: one rank's is the cause, the others lost their peer.
int run(const Experiment& experiment) {
  const int ranks = static_cast<int>(experiment.layout.world());
  comm::LocalWorld world(ranks, comm::milliseconds{60'000});
  Result result;
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank, communicator = world.communicator(rank)]() mutable {
      try {
        run_rank(experiment, std::move(communicator), rank, result);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  bool failed = false;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string& error = errors[static_cast<std::size_t>(rank)];
    if (error.empty()) continue;
    failed = true;
    std::fprintf(stderr, "interop_layout_probe: rank %d: %s\n", rank, error.c_str());
  }
  if (failed) return 1;
  checkpoint::write_safetensors(experiment.out / "result.safetensors", result.tensors);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: interop_layout_probe CASE LAYOUT ACCUMULATION OUT\n");
    return 2;
  }
  try {
    at::set_num_threads(1);  // tiny models, a thread per rank
    fs::create_directories(argv[4]);
    return run(read_experiment(argv[1], argv[2], std::stoll(argv[3]), argv[4]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "interop_layout_probe: %s\n", error.what());
    return 1;
  }
}
