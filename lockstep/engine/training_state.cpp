#include "lockstep/engine/training_state.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/cost/fused/run.h"
#include "lockstep/engine/whole_tensors.h"

namespace lockstep::engine {
namespace {

std::unique_ptr<data::Loader> make_loader(const spec::Job& job, const TrainingState& state, std::int64_t data_rank,
                                          std::int64_t data_ranks) {
  data::LoaderOptions options;
  options.pinned = !state.device.is_cpu();
  options.micro = job.batch.micro;
  options.accumulation = job.batch.accumulation;
  options.data_rank = data_rank;
  options.data_world = data_ranks;
  options.seed = static_cast<std::uint64_t>(job.seed);
  options.shuffle = job.data.shuffle;
  options.num_workers = job.loader.num_workers;
  options.prefetch_factor = job.loader.prefetch_factor;
  options.timeout_seconds = job.communication.timeout_seconds;
  return std::make_unique<data::Loader>(state.datasets.train, options);
}

parallel::ReducerOptions reducer_options(const spec::Job& job) {
  parallel::ReducerOptions options;
  options.bucket_mib = job.communication.bucket_mib;
  options.first_bucket_mib = std::min(1.0, options.bucket_mib);
  options.compression.kind = job.communication.compression;
  options.compression.powersgd_rank = job.communication.powersgd_rank;
  options.compression.seed = static_cast<std::uint64_t>(job.seed);
  return options;
}

void build_replica(TrainingState& state, const spec::Job& job, comm::Communicator& data_group) {
  const PrecisionPolicy precision = precision_policy(job.precision, state.device);
  nn::BuildOptions build;
  build.device = state.device;
  build.dtype = precision.model;
  build.seed = static_cast<std::uint64_t>(job.seed);
  state.model = nn::build_model(job.model, build);
  state.parameters = std::make_unique<parallel::FlatParameters>(state.model, precision.flat_options());
  state.optimizer = make_optimizer(job.optimizer, *state.parameters);
  LossScalerOptions scaling;
  scaling.enabled = precision.loss_scaling;
  state.scaler = LossScaler(scaling);
  const parallel::ReducerOptions reducing = reducer_options(job);
  state.reducer = std::make_unique<parallel::GradientReducer>(*state.parameters, data_group, reducing);
  state.copies = std::make_unique<nn::CopyAhead>(state.device);
}

}  // namespace

TrainingState build_training_state(const spec::Job& job, comm::Communicator& world) {
  plan::Layout layout;
  layout.dp = world.size();
  layout.precision = job.precision;
  return build_training_state(job, layout, world);
}

namespace {

// Where the job is one for it; otherwise `why_general` is set.
void build_device_step(TrainingState& state, const spec::Job& job, const plan::Layout& layout,
                       const DeviceStepMaker& make_step) {
  DeviceStepChoice choice = make_step(job, layout, state.device);
  state.why_general = std::move(choice.why_not);
  state.device_step = std::move(choice.step);
  if (state.device_step) {
    state.initial_parameters = load_initial_values(*state.device_step, job);
  } else if (job.precision == spec::Precision::kFp8) {
    throw environment_error(cost::fp8_refusal(state.why_general), "use bf16");
  } else if (job.optimizer.state_precision != spec::Precision::kFp32) {
    throw environment_error(cost::narrow_states_refusal(state.why_general), "use state_precision fp32");
  }
}

}  // namespace

TrainingState build_training_state(const spec::Job& job, const plan::Layout& layout, comm::Communicator& world,
                                   torch::Device device, const DeviceStepMaker& make_step) {
  TrainingState state;
  state.device = device;
  state.datasets = data::open_datasets(job);
  std::int64_t data_rank = world.rank();
  build_device_step(state, job, layout, make_step);
  if (state.device_step) {
    // Everything is there.
  } else if (is_plain_data_parallel(layout, job)) {
    build_replica(state, job, world);
  } else {
    state.executor = std::make_unique<LayoutExecutor>(job, layout, world, device);
    state.initial_parameters = state.executor->initial_parameters();
    data_rank = state.executor->model().groups().data_rank;
  }
  state.loader = make_loader(job, state, data_rank, layout.data_ranks());
  if (state.loader->global_batch() > state.datasets.train->size()) {
    throw bad_input(fmt::format("a global batch of {} samples is more than the data set has ({})",
                                state.loader->global_batch(), state.datasets.train->size()),
                    "lower batch.micro or batch.accumulation, or shorten batch.sequence_length");
  }
  state.total_steps = total_steps_of(job, *state.loader);
  if (!state.parameters) return state;
  parallel::check_same_parameters(*state.parameters, world);
  parallel::broadcast_parameters(*state.parameters, world);
  return state;
}

std::int64_t total_steps_of(const spec::Job& job, const data::Loader& loader) {
  if (job.steps > 0) return job.steps;
  if (job.tokens > 0) {
    const std::int64_t per_step = loader.global_batch() * loader.dataset().tokens_per_sample();
    if (per_step == 0) throw bad_input("`tokens` was given but this data has no tokens", "use `epochs` or `steps`");
    return (job.tokens + per_step - 1) / per_step;
  }
  return static_cast<std::int64_t>(std::ceil(job.epochs * static_cast<double>(loader.steps_per_epoch())));
}

data::Position position_of(const TrainingState& state) {
  return state.staged.empty() ? state.loader->position() : state.staged.front().step_start;
}

std::int64_t steps_left(const spec::Job& job, const data::Loader& loader, data::Position position) {
  const std::int64_t size = loader.dataset().size();
  const std::int64_t batch = loader.global_batch();
  const std::int64_t per_sample = std::max<std::int64_t>(1, loader.dataset().tokens_per_sample());
  const double wanted = job.tokens > 0 ? std::ceil(static_cast<double>(job.tokens) / static_cast<double>(per_sample))
                                       : std::ceil(job.epochs * static_cast<double>(size));
  const auto left = static_cast<std::int64_t>(wanted) - (position.epoch * size + position.samples);
  if (left <= 0) return 0;
  const auto steps = [batch](std::int64_t samples) { return (samples + batch - 1) / batch; };
  const std::int64_t in_this_epoch = std::min(left, size - position.samples);
  const std::int64_t after = left - in_this_epoch;
  return steps(in_this_epoch) + after / size * steps(size) + steps(after % size);
}

namespace {

void add_replica(const TrainingState& state, checkpoint::CheckpointContents& contents) {
  contents.model = state.parameters->views(state.parameters->values());
  for (const auto& buffer : state.model->named_buffers()) contents.model[buffer.key()] = buffer.value();
  contents.optimizer = state.optimizer->state();
  contents.optimizer.merge(state.scaler.state());
  if (state.parameters->has_master()) {
    contents.optimizer.merge(state.parameters->views(state.parameters->master(), kMasterPrefix));
  }
  contents.rank_tensors = state.reducer->state();
}

// The buffers of an unsplit model (batch norm's); pipelines and tensor parallelism are for models without.
void add_assembled(LayoutExecutor& executor, checkpoint::CheckpointContents& contents) {
  parallel::ParallelModel& model = executor.model();
  contents.model = model.assemble([](const parallel::FlatShard& shard) { return shard.weights(); });
  for (nn::TrainableModel* chunk : model.models()) {
    for (const auto& buffer : chunk->named_buffers()) contents.model[buffer.key()] = buffer.value();
  }
  contents.optimizer = executor.optimizer().assemble();
  contents.optimizer.merge(executor.scaler().state());
  contents.optimizer.merge(model.assemble(
      [](const parallel::FlatShard& shard) { return shard.has_master() ? shard.master() : torch::Tensor(); },
      kMasterPrefix));
}

bool has_master(const checkpoint::CheckpointContents& contents) {
  const auto first = contents.optimizer.lower_bound(kMasterPrefix);
  return first != contents.optimizer.end() && first->first.rfind(kMasterPrefix, 0) == 0;
}

void restore_replica(TrainingState& state, const checkpoint::CheckpointContents& contents) {
  torch::Tensor values = state.parameters->values();
  if (has_master(contents) && !state.parameters->has_master()) {  // of a narrower run: nothing is lost
    state.parameters->load(values, contents.optimizer, kMasterPrefix);
  } else {
    state.parameters->load(values, contents.model);
  }
  if (state.parameters->has_master()) {
    torch::Tensor master = state.parameters->master();
    state.parameters->load(master, contents.optimizer, kMasterPrefix);
  }
  state.optimizer->load_state(contents.optimizer);
  state.scaler.load_state(contents.optimizer);
}

void restore_parts(LayoutExecutor& executor, const checkpoint::CheckpointContents& contents) {
  parallel::ParallelModel& model = executor.model();
  model.fill([](const parallel::FlatShard& shard) { return shard.has_master() ? torch::Tensor() : shard.master(); },
             has_master(contents) ? range_reader(contents.optimizer, kMasterPrefix) : range_reader(contents.model, ""));
  model.fill([](const parallel::FlatShard& shard) { return shard.has_master() ? shard.master() : torch::Tensor(); },
             range_reader(contents.optimizer, kMasterPrefix));
  model.adopt_master();
  executor.optimizer().load(contents.optimizer);
  executor.scaler().load_state(contents.optimizer);
}

void restore_buffers(torch::nn::Module& module, const checkpoint::CheckpointContents& contents) {
  for (auto& buffer : module.named_buffers()) {
    const auto found = contents.model.find(buffer.key());
    if (found == contents.model.end()) {
      throw bad_input("the checkpoint has no tensor " + buffer.key(),
                      "it is of another model; check `model` in the job");
    }
    buffer.value().copy_(found->second);
  }
}

}  // namespace

checkpoint::CheckpointContents checkpoint_contents(TrainingState& state, const spec::Job& job, int world) {
  checkpoint::CheckpointContents contents;
  contents.step = state.step;
  if (state.device_step) {
    contents.model = weights_of(*state.device_step);
    contents.optimizer = optimizer_state_of(*state.device_step);
    contents.optimizer.merge(state.scaler.state());
  } else if (state.executor) {
    add_assembled(*state.executor, contents);
  } else {
    add_replica(state, contents);
  }
  const data::Position position = position_of(state);
  contents.loader = {{"epoch", position.epoch},
                     {"samples", position.samples},
                     {"global_batch", state.loader->global_batch()},
                     {"dataset_samples", state.loader->dataset().size()}};
  contents.job_yaml = spec::to_yaml(job);
  contents.extra = {{"world", world}};
  if (state.device_step) contents.extra["device_step"] = state.device_step->choices();
  // Random numbers are keyed by (seed, step, place), so seed and step are the whole state of every generator of ours;
  // libtorch's own is kept for operators that draw from it.
  contents.rank_state = {{"seed", job.seed}, {"step", state.step}};
  contents.rank_tensors["libtorch.generator"] = at::globalContext().defaultGenerator(torch::kCPU).get_state();
  return contents;
}

std::string restore(TrainingState& state, const checkpoint::CheckpointContents& contents, const spec::Job& job,
                    int world) {
  const torch::NoGradGuard no_grad;
  const std::int64_t dataset_samples = contents.loader.value("dataset_samples", std::int64_t{-1});
  if (dataset_samples != state.loader->dataset().size()) {
    throw bad_input(fmt::format("the checkpoint was made on a data set of {} samples, this one has {}", dataset_samples,
                                state.loader->dataset().size()),
                    "resume on the same data and sequence length, or start afresh without --resume");
  }
  if (!(spec::parse_job(contents.job_yaml, "checkpoint").model == job.model)) {
    throw bad_input("the checkpoint is of another model than the job's",
                    "resume with the model it was made with, or start afresh without --resume");
  }
  if (state.device_step) {
    load_state(*state.device_step, contents.model, contents.optimizer);
    state.device_step->adopt_choices(contents.extra.value("device_step", ""));
    state.scaler.load_state(contents.optimizer);
  } else if (state.executor) {
    restore_parts(*state.executor, contents);
    for (nn::TrainableModel* chunk : state.executor->model().models()) restore_buffers(*chunk, contents);
  } else {
    restore_replica(state, contents);
    restore_buffers(*state.model, contents);
  }
  state.staged.clear();
  state.loader->seek({contents.loader.at("epoch"), contents.loader.at("samples")});
  state.step = contents.step;
  const bool same_batch = contents.loader.value("global_batch", std::int64_t{0}) == state.loader->global_batch();
  if (job.steps == 0 && !same_batch) {
    state.total_steps = state.step + steps_left(job, *state.loader, state.loader->position());
  }

  parallel::TensorMap own = contents.rank_tensors;
  if (const auto generator = own.find("libtorch.generator"); generator != own.end()) {
    at::Generator torch_generator = at::globalContext().defaultGenerator(torch::kCPU);
    torch_generator.set_state(generator->second);
    own.erase(generator);
  }
  if (!state.reducer) return {};
  if (contents.extra.value("world", world) == world) {
    state.reducer->load_state(own);
  } else if (job.communication.compression != spec::Compression::kNone) {
    return "the number of ranks changed: error feedback of the gradient compression starts anew";
  }
  return {};
}

}  // namespace lockstep::engine
