#include "lockstep/engine/training_state.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/engine/fused_executor.h"
#include "lockstep/engine/kept_batch.h"
#include "lockstep/engine/resume_check.h"
#include "lockstep/engine/sharded_executor.h"

namespace lockstep::engine {
namespace {

std::unique_ptr<data::Loader> make_loader(const spec::Job& job, const plan::Run& run, const TrainingState& state,
                                          const std::shared_ptr<telemetry::SpanLog>& log) {
  data::LoaderOptions options;
  options.pinned = state.pinned;
  options.micro = run.batch.micro;
  options.schedule = run.schedule;
  options.data_rank = state.executor->data_rank();
  options.data_world = run.layout.data_ranks();
  options.seed = static_cast<std::uint64_t>(job.seed);
  options.shuffle = job.data.shuffle;
  options.num_workers = job.loader.num_workers;
  options.prefetch_factor = job.loader.prefetch_factor;
  options.timeout_seconds = run.communication.timeout_seconds;
  options.log = log;
  return std::make_unique<data::Loader>(state.datasets.train, options);
}

// The fused step where the job is one for it, else the general path.
std::unique_ptr<Executor> make_executor(const spec::Job& job, const plan::Run& run, comm::Communicator& world,
                                        const data::Dataset& data, const TrainingOptions& options) {
  DeviceStepChoice choice = options.make_step(job, run, options.device);
  if (choice.step) return std::make_unique<FusedExecutor>(job, std::move(choice.step));
  // What the fused step alone trains: the verdict let it pass, but the device here is not the one it was planned for.
  if (run.layout.precision == spec::Precision::kFp8) {
    throw environment_error("precision fp8 is trained by the fused CUDA step alone: " + choice.why_not, "use bf16");
  }
  if (run.optimizer.state_precision != spec::Precision::kFp32) {
    throw environment_error("optimizer.state_precision bf16 is the fused CUDA step's alone: " + choice.why_not,
                            "use state_precision fp32");
  }
  ShardedOptions sharded;
  sharded.device = options.device;
  sharded.padding_id = data.padding_id();
  // Conversations, masked tokens, documents that are kept apart and what a plugin gives have some targets here and some
  // there.
  const bool same = job.data.kind != spec::DataKind::kInstruction && job.data.kind != spec::DataKind::kPlugin &&
                    run.model.arch != spec::Arch::kBert && job.data.packing != spec::Packing::kDocuments;
  sharded.targets_per_sample = same ? data.targets_per_sample() : 0;
  if (run.model.is_scripted()) {
    const spec::Script& script = run.model.script;
    const bool by_target = spec::counts_classes(script.loss) || script.facts.counts_targets;
    sharded.targets_per_sample = by_target ? 0 : 1;
  }
  sharded.why = choice.why_not;
  sharded.make_model = options.make_model;
  sharded.begin_weights = false;
  return std::make_unique<ShardedExecutor>(job, run, world, sharded);
}

}  // namespace

TrainingState build_training_state(const spec::Job& job, const plan::Run& run, comm::Communicator& world,
                                   const TrainingOptions& options) {
  TrainingState state;
  state.pinned = !options.device.is_cpu();
  state.learning_rate = std::make_shared<LearningRate>(job.optimizer);
  state.datasets = data::open_datasets(job, {}, options.notice);
  state.data_contents = data_contents(job.data);
  state.batch_ranks = options.batch_ranks > 0 ? options.batch_ranks : run.layout.data_ranks();
  state.rate_factor = options.rate_factor;
  state.executor = make_executor(job, run, world, *state.datasets.train, options);
  if (options.begin_weights) state.executor->begin_weights();
  state.loader = make_loader(job, run, state, options.log);
  if (run.schedule.largest() > state.datasets.train->size()) {
    throw bad_input(fmt::format("a global batch of {} samples is more than the data set has ({})",
                                run.schedule.largest(), state.datasets.train->size()),
                    "lower batch.micro or batch.accumulation, or shorten batch.sequence_length");
  }
  state.total_steps = total_steps_of(job, *state.loader);
  state.replicas = run.layout.world() / run.layout.data_ranks();
  state.order = {state.datasets.train->size(), static_cast<std::uint64_t>(job.seed), job.data.shuffle};
  state.ledger.go_on(state.order, 0, 0);
  return state;
}

namespace {

// In the stream of all samples (telemetry/ledger.h).
std::int64_t place_of(const TrainingState& state, data::Position position) {
  return position.epoch * state.order.samples + position.samples;
}

}  // namespace

telemetry::LedgerEntry ledger_entry(const TrainingState& state, const TrainingState::Staged& staged, std::int64_t step,
                                    const std::optional<telemetry::SamplesRead>& read) {
  telemetry::LedgerEntry entry;
  entry.kind = read ? telemetry::LedgerEntry::Kind::kRead : telemetry::LedgerEntry::Kind::kUnconfirmed;
  entry.first_step = entry.last_step = step;
  entry.first = place_of(state, staged.start);
  entry.places = staged.samples;
  entry.replicas = state.replicas;
  entry.read = read.value_or(telemetry::SamplesRead{});
  return entry;
}

std::int64_t total_steps_of(const spec::Job& job, const data::Loader& loader) {
  if (job.steps > 0) return job.steps;
  if (job.tokens > 0) {
    const std::int64_t per_step = loader.schedule().final() * loader.dataset().tokens_per_sample();
    if (per_step == 0) throw bad_input("`tokens` was given but this data has no tokens", "use `epochs` or `steps`");
    if (!loader.schedule().is_constant()) return steps_left(job, loader, {}, 0);
    return (job.tokens + per_step - 1) / per_step;
  }
  if (!loader.schedule().is_constant()) return steps_left(job, loader, {}, 0);
  return static_cast<std::int64_t>(std::ceil(job.epochs * static_cast<double>(loader.steps_per_epoch())));
}

std::int64_t steps_left(const spec::Job& job, const data::Loader& loader, data::Position position, std::int64_t step) {
  const std::int64_t size = loader.dataset().size();
  const std::int64_t per_sample = std::max<std::int64_t>(1, loader.dataset().tokens_per_sample());
  const double wanted = job.tokens > 0 ? std::ceil(static_cast<double>(job.tokens) / static_cast<double>(per_sample))
                                       : std::ceil(job.epochs * static_cast<double>(size));
  return spec::steps_until(loader.schedule(), size, step, position.epoch * size + position.samples,
                           static_cast<std::int64_t>(wanted));
}

namespace {

// All but the tensors of the executor, of the state after `step` steps at `position`.
checkpoint::CheckpointPart facts_part(const TrainingState& state, const spec::Job& job, int world, std::int64_t step,
                                      data::Position position) {
  checkpoint::CheckpointPart part;
  part.facts.step = step;
  part.facts.loader = {{"epoch", position.epoch},
                       {"samples", position.samples},
                       {"global_batch", state.global_batch_at(step, position)},
                       {"batch", batch_facts(state.loader->schedule(), state.batch_ranks, state.rate_factor)},
                       {"dataset_samples", state.loader->dataset().size()},
                       {"data", state.data_contents}};
  part.facts.job_yaml = spec::to_yaml(job);
  part.facts.extra["world"] = world;
  telemetry::Ledger ledger = state.ledger;
  const bool ahead = step > state.step && state.in_step;  // done, and what was exchanged with it is lost
  if (ahead) ledger.add(ledger_entry(state, *state.in_step, step, std::nullopt));
  if (!ahead && state.last_loss) part.facts.extra["last_loss"] = *state.last_loss;
  part.facts.extra["ledger"] = telemetry::to_json(ledger);
  // Random numbers are keyed by (seed, step, place), so seed and step are the whole state of every generator of ours;
  // libtorch's own is kept for operators that draw from it.
  part.facts.rank_state = {{"seed", job.seed}, {"step", step}};
  part.pieces.push_back(checkpoint::whole_piece(checkpoint::TensorKind::kRank, state_name::kGenerator,
                                                at::globalContext().defaultGenerator(torch::kCPU).get_state()));
  return part;
}

}  // namespace

checkpoint::CheckpointPart checkpoint_part(TrainingState& state, const spec::Job& job, int world) {
  checkpoint::CheckpointPart part = facts_part(state, job, world, state.step, state.position);
  state.executor->save(part);
  return part;
}

checkpoint::CheckpointPart live_part(const TrainingState& state, const spec::Job& job, int world) {
  const std::int64_t step = state.executor->completed_steps();
  // The step was done when it failed: its samples are used up.
  const bool done = step > state.step && state.in_step;
  checkpoint::CheckpointPart part = facts_part(state, job, world, step, done ? state.in_step->behind : state.position);
  state.executor->hold(part);
  return part;
}

namespace {

checkpoint::CheckpointPart in_host_memory(checkpoint::CheckpointPart part, bool copy) {
  for (checkpoint::TensorPiece& piece : part.pieces) {
    piece.values = piece.values.to(torch::kCPU, /*non_blocking=*/false, copy).contiguous();
  }
  return part;
}

}  // namespace

checkpoint::CheckpointPart held_part(const TrainingState& state, const spec::Job& job, int world) {
  return in_host_memory(live_part(state, job, world), true);
}

// Tensors on the CPU outlive the executor; those of an arena do not.
checkpoint::CheckpointPart left_part(const TrainingState& state, const spec::Job& job, int world) {
  return in_host_memory(live_part(state, job, world), state.executor->figures().offloaded_bytes > 0);
}

checkpoint::CheckpointContents checkpoint_contents(TrainingState& state, const spec::Job& job, int world) {
  return checkpoint::contents_of(checkpoint_part(state, job, world));
}

std::string restore(TrainingState& state, const checkpoint::CheckpointContents& contents, const spec::Job& job,
                    int world) {
  const checkpoint::ContentsSource source(contents);
  return restore(state, SavedState{contents.facts, source, contents.rank_tensors}, job, world);
}

std::string restore(TrainingState& state, const SavedState& saved, const spec::Job& job, int world) {
  const checkpoint::CheckpointFacts& contents = saved.facts;
  const std::int64_t dataset_samples = contents.loader.value("dataset_samples", std::int64_t{-1});
  if (dataset_samples != state.loader->dataset().size()) {
    throw bad_input(fmt::format("the checkpoint was made on a data set of {} samples, this one has {}", dataset_samples,
                                state.loader->dataset().size()),
                    "resume on the same data and sequence length, or start afresh in another checkpoint.directory");
  }
  if (!(spec::parse_job(contents.job_yaml, "checkpoint").model == job.model)) {
    throw bad_input("the checkpoint is of another model than the job's",
                    "resume with the model it was made with, or start afresh in another checkpoint.directory");
  }
  std::string remark = state.executor->restore(saved, contents.extra.value("world", world) == world);
  state.staged.reset();
  state.step = contents.step;
  state.loader->seek({contents.loader.at("epoch"), contents.loader.at("samples")}, state.step);
  state.position = state.loader->position();
  const auto loss = contents.extra.find("last_loss");
  state.last_loss.reset();
  if (loss != contents.extra.end() && loss->is_number()) state.last_loss = loss->get<double>();
  // Versions that kept no ledger: it begins here.
  state.ledger = contents.extra.contains("ledger") ? telemetry::ledger_from_json(contents.extra.at("ledger"))
                                                   : telemetry::Ledger();
  state.ledger.go_on(state.order, state.step, place_of(state, state.position));
  const auto saved_batch = saved_batch_of(contents);
  const bool same_batch = saved_batch && saved_batch->schedule == state.loader->schedule();
  if (job.steps == 0 && !same_batch) {
    state.total_steps = state.step + steps_left(job, *state.loader, state.position, state.step);
  }

  const auto generator = saved.rank_tensors.find(state_name::kGenerator);
  if (generator != saved.rank_tensors.end()) {
    at::Generator torch_generator = at::globalContext().defaultGenerator(torch::kCPU);
    torch_generator.set_state(generator->second);
  }
  return remark;
}

}  // namespace lockstep::engine
