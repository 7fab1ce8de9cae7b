#include "lockstep/engine/training_step.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/engine/metrics.h"
#include "lockstep/telemetry/span_log.h"

namespace lockstep::engine {
namespace {

using telemetry::Phase;
using telemetry::SpanKind;
using telemetry::SpanScope;

// Hands the next step's batches to the executor.
void stage_next(TrainingState& state, Phase phase) {
  const SpanScope span({.kind = SpanKind::kLoad}, phase);
  std::vector<data::Batch> batches;
  while (batches.empty() || !batches.back().last_of_step) batches.push_back(state.loader->next());
  state.staged = {batches.back().global_samples, batches.back().step_start, state.loader->position(), {}};
  for (const data::Batch& batch : batches) state.staged->read += batch.read;
  state.executor->stage(std::move(batches));
}

// The beginning of a data set.
class FirstSamples final : public data::Dataset {
 public:
  FirstSamples(std::shared_ptr<const data::Dataset> whole, std::int64_t size)
      : whole_(std::move(whole)), size_(std::min(size, whole_->size())) {}

  std::int64_t size() const override { return size_; }
  data::Samples fetch(std::span<const std::int64_t> indices) const override { return whole_->fetch(indices); }
  data::Samples fetch_in_epoch(std::span<const std::int64_t> indices, std::int64_t epoch) const override {
    return whole_->fetch_in_epoch(indices, epoch);
  }
  std::string describe() const override { return whole_->describe(); }
  std::int64_t tokens_per_sample() const override { return whole_->tokens_per_sample(); }
  std::int64_t targets_per_sample() const override { return whole_->targets_per_sample(); }
  std::int64_t padding_id() const override { return whole_->padding_id(); }

 private:
  std::shared_ptr<const data::Dataset> whole_;
  std::int64_t size_;
};

// `evaluation.batches` counts batches of the size of a step, `evaluation.samples` samples, whatever a step has.
std::shared_ptr<const data::Dataset> evaluation_part(const TrainingState& state, const spec::Job& job) {
  const std::int64_t batches = job.evaluation.batches, of_a_step = state.loader->schedule().final();
  const std::int64_t whole = state.datasets.evaluation->size(), samples = job.evaluation.samples;
  if (samples > 0 && samples < whole) return std::make_shared<FirstSamples>(state.datasets.evaluation, samples);
  if (batches == 0 || batches > whole / of_a_step) return state.datasets.evaluation;
  return std::make_shared<FirstSamples>(state.datasets.evaluation, batches * of_a_step);
}

}  // namespace

StepResult run_step(TrainingState& state, StepWishes wishes, const std::function<bool(double, double)>& may_update) {
  const double begin = monotonic_seconds();
  if (!state.staged) stage_next(state, Phase::kData);
  const double fetched = monotonic_seconds();
  const TrainingState::Staged now = *std::exchange(state.staged, std::nullopt);
  StepInput input;
  input.step = state.step;
  input.learning_rate = state.rate_factor * state.learning_rate->at(state.step, state.total_steps);
  input.wishes = wishes;
  input.may_update = may_update;
  input.wishes.read = now.read;
  if (state.step + 1 < state.total_steps) input.meanwhile = [&] { stage_next(state, Phase::kCompute); };
  input.before_update = state.before_update;
  state.in_step = now;
  StepResult result = state.executor->step(input);
  // What the device waited for of `meanwhile`.
  if (telemetry::SpanLog* const log = telemetry::SpanLog::current()) {
    log->move(Phase::kCompute, Phase::kData, result.data_seconds);
  }
  state.in_step.reset();
  state.step += 1;
  state.last_loss = result.loss;
  state.ledger.add(ledger_entry(state, now, state.step, result.wishes.read));
  state.position = now.behind;
  result.samples = now.samples;
  result.tokens = result.samples * state.datasets.train->tokens_per_sample();
  result.data_seconds += fetched - begin;
  result.seconds = monotonic_seconds() - begin;
  return result;
}

EvaluationResult evaluate(TrainingState& state, const spec::Job& job, const plan::Layout& layout,
                          comm::Communicator& world, const std::function<void()>& on_batch) {
  const SpanScope span({.kind = SpanKind::kEvaluation});
  state.executor->share_buffers();
  data::LoaderOptions options;
  options.micro = job.batch.micro;
  options.data_rank = state.executor->data_rank();
  options.data_world = layout.data_ranks();
  options.shuffle = false;
  options.num_workers = job.loader.num_workers;
  options.prefetch_factor = job.loader.prefetch_factor;
  options.epochs = 1;
  options.pinned = state.pinned;
  data::Loader loader(evaluation_part(state, job), options);

  const torch::NoGradGuard no_grad;
  const std::int64_t padding_id = state.datasets.evaluation->padding_id();
  EvaluationMetrics metrics(job);
  while (!loader.done()) {
    const Evaluated part = state.executor->evaluate(loader.next(), padding_id, metrics.need_output());
    metrics.add(part.sums, part.output, part.target);
    if (on_batch) on_batch();
  }
  metrics.reduce(
      [&](std::vector<double>& sums) {
        world.all_reduce({sums.data(), static_cast<std::int64_t>(sums.size()), comm::DType::kF64}).wait();
      },
      [&](std::int64_t& length) {
        world.all_reduce({&length, 1, comm::DType::kI64}, comm::ReduceOp::kMax).wait();
      });
  return {metrics.loss(), metrics.accuracy(), metrics.sums().targets, metrics.values()};
}

}  // namespace lockstep::engine
