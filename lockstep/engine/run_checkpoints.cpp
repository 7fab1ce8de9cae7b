#include "lockstep/engine/run_checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/engine/chaos.h"
#include "lockstep/engine/control.h"

namespace lockstep::engine {
namespace {

using telemetry::SpanKind;
using telemetry::SpanScope;

constexpr double kFirstPauseSeconds = 5.0, kLongestPauseSeconds = 300.0;
constexpr int kLastAttempts = 3;  // to save the last state
// In the facts of a checkpoint: when it was begun (seconds since 1970), and what saves before it were like.
constexpr const char* kBegunAt = "begun_at";
constexpr const char* kSaves = "saves";

double pause_after(int failures) {
  return std::min(kLongestPauseSeconds, kFirstPauseSeconds * std::pow(2.0, failures - 1));
}

double over_all(comm::Communicator& world, double value, comm::ReduceOp op, const comm::OpOptions& options) {
  if (world.size() > 1) world.all_reduce({&value, 1, comm::DType::kF64}, op, options).wait();
  return value;
}

CheckpointCadence cadence_of(const RunContext& context) {
  const std::optional<plan::Plan>& plan = context.request.plan;
  const spec::CheckpointPolicy& policy = context.job.checkpoint;
  return {policy, planner::cadence_question(context.job.model, context.job.cluster, 0, policy.max_lost_seconds),
          plan ? plan->best.checkpoint : std::nullopt};
}

}  // namespace

checkpoint::SaveProgress sum_progress(comm::Communicator& world, const checkpoint::SaveProgress& own) {
  std::array<double, checkpoint::SaveProgress::kFields> sums = own.numbers();
  if (world.size() > 1) {
    comm::OpOptions options;
    options.site = "world: checkpoint";
    world
        .all_reduce({sums.data(), static_cast<std::int64_t>(sums.size()), comm::DType::kF64}, comm::ReduceOp::kSum,
                    options)
        .wait();
  }
  return checkpoint::SaveProgress::of(sums.data());
}

namespace {

// A device loads a kernel when it is first used. That takes longer than the look for values that are not finite itself,
// and the first save would wait for it.
void load_kernels_of_the_look(torch::Device device) {
  if (device.is_cpu()) return;
  checkpoint::CheckpointPart part;
  for (const torch::ScalarType dtype : {torch::kFloat32, torch::kBFloat16}) {
    const torch::Tensor values = torch::ones({2}, torch::TensorOptions().dtype(dtype).device(device));
    part.pieces.push_back(checkpoint::whole_piece(checkpoint::TensorKind::kModel, "ones", values));
  }
  find_not_finite(part);
}

}  // namespace

RunCheckpoints::RunCheckpoints(RunContext& context, RunHealth& health, Guard guard)
    : context_(context), health_(health), guard_(std::move(guard)), cadence_(cadence_of(context)) {
  if (context.request.checkpoint_directory.empty()) return;
  checkpoint::SaverOptions options;
  options.directory = context.request.checkpoint_directory;
  options.rank = context.rank();
  options.world = context.world.size();
  options.keep = context.job.checkpoint.keep;
  options.session = broadcast_text(context.world, checkpoint::new_session(), 0);
  options.timeout_seconds = context.job.checkpoint.timeout_seconds;
  options.files = context.files;
  options.log = context.log;
  pin_ = std::make_shared<SoundPin>(options.directory, options.files);
  options.before_publish = [lease = context.lease, pin = pin_] {
    if (lease) lease->check();
    pin->settle();
  };
  const comm::OpOptions patient = disk_options(context.job, "world: probe of the checkpoint folder");
  checkpoint::probe_directory(
      options, [&](double value) { return over_all(context.world, value, comm::ReduceOp::kSum, patient); });
  saver_ = std::make_unique<checkpoint::Saver>(options);
  load_kernels_of_the_look(context.device);
}

Endured RunCheckpoints::endured() const {
  return {context_.endured.failures, context_.endured.seconds + since_start_.seconds()};
}

void RunCheckpoints::remember(const nlohmann::json& extra) {
  if (extra.is_object() && extra.contains(kSaves)) cadence_.remember(extra.at(kSaves));
}

// What was done since the newest checkpoint on the disk is in memory alone.
void RunCheckpoints::recovered_from_memory() {
  if (!saver_ || context_.rank() != 0) return;
  age_before_ = endured().seconds;
  if (context_.request.resume_from.empty()) return;
  try {
    const auto reader = checkpoint::CheckpointReader::open(context_.request.resume_from);
    const nlohmann::json extra = reader.manifest().value("extra", nlohmann::json::object());
    remember(extra);
    const double begun = extra.is_object() ? extra.value(kBegunAt, reader.info().created_at) : reader.info().created_at;
    age_before_ = std::max(0.0, unix_seconds() - begun);
  } catch (const std::exception&) {
    // It is gone or damaged: nothing that is newer than the run itself is there.
  }
}

void RunCheckpoints::start(const std::string& covered) {
  covered_ = covered;
  if (!saver_ || !cadence_.is_chosen() || context_.rank() != 0) return;
  const bool other = cadence_.begins(endured());
  tell_cadence(other || context_.generation == 1);
}

bool RunCheckpoints::wants_save() const {
  if (!saver_ || context_.rank() != 0) return false;
  if (failures_ > 0) return !saver_->busy() && monotonic_seconds() >= retry_at_;
  return cadence_.is_due(age_before_ + since_save_.seconds());
}

checkpoint::SaveProgress RunCheckpoints::progress() const {
  return saver_ ? saver_->progress() : checkpoint::SaveProgress{};
}

void RunCheckpoints::after_step(TrainingState& state, const StepResult& result, bool last) {
  if (!saver_) return;
  const SpanScope span({.kind = SpanKind::kCheckpoint});
  cadence_.stepped(result.seconds);
  if (const auto outcome = saver_->advance(result.wishes.saving)) end(*outcome);
  pin_sound();
  if (last) return;
  if (!std::exchange(prepared_, true)) prepare(state);
  const std::int64_t every = context_.job.checkpoint.every_steps;
  pending_ = pending_ || result.wishes.save || (every > 0 && state.step % every == 0);
  if (!pending_) return;
  if (saver_->busy()) {
    if (context_.rank() == 0 && !std::exchange(told_wait_, true)) {
      context_.host.note(
          fmt::format("the checkpoint of step {} is still being written; the next one follows it", saver_->step()));
    }
    return;
  }
  if (failures_ == 0 || result.wishes.save) begin(state);  // after a failure the first rank's clock decides
}

// The first save would wait for the pages that it copies into. What comes from a device is copied behind the step's
// back.
void RunCheckpoints::prepare(TrainingState& state) {
  if (!context_.device.is_cpu()) return;
  saver_->prepare(checkpoint_part(state, context_.job, context_.world.size()));
}

void RunCheckpoints::begin(TrainingState& state) {
  pending_ = false;
  if (saved_step_ == state.step) return;
  since_save_.restart();
  const SpanScope span({.kind = SpanKind::kCheckpoint, .name = "copy the state"});
  begun_ = monotonic_seconds();
  const double begun_at = unix_seconds();
  const Stopwatch stalled;  // until all ranks have agreed that the values are finite
  checkpoint::CheckpointPart part = checkpoint_part(state, context_.job, context_.world.size());
  part.facts.extra["layout"] = plan::to_string(context_.run.layout);
  part.facts.extra["run"] = context_.request.run_id;
  part.facts.extra["usual_losses"] = health_.usual_losses();
  part.facts.extra[kBegunAt] = begun_at;
  part.facts.extra[kSaves] = cadence_.memory();
  // What is in host memory is looked at while it is copied.
  const auto on_device = context_.device.is_cpu() ? std::nullopt : find_not_finite(part);
  saver_->begin(part, [&](const std::optional<std::string>& not_finite) {
    guard_([&] {
      require_finite(on_device ? on_device : not_finite, context_.world,
                     fmt::format("the checkpoint of step {} was not saved", state.step));
    });
  });
  stall_seconds_ = stalled.seconds();
  age_before_ = 0.0;
}

checkpoint::SaveOutcome RunCheckpoints::wait() {
  checkpoint::SaveOutcome outcome = checkpoint::finish_save(*saver_, [&](const checkpoint::SaveProgress& own) {
    if (context_.control != nullptr) context_.control->worked();
    return sum_progress(context_.world, own);
  });
  end(outcome);
  return outcome;
}

void RunCheckpoints::finish() {
  ending_ = true;
  if (saver_ && saver_->busy()) wait();
}

void RunCheckpoints::save_last(TrainingState& state) {
  if (!saver_) return;
  const SpanScope span({.kind = SpanKind::kCheckpoint, .name = "the last one"});
  finish();
  std::string problem;
  for (int attempt = 0; attempt < kLastAttempts && saved_step_ != state.step; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(std::chrono::milliseconds(250) * attempt);
    begin(state);
    const checkpoint::SaveOutcome outcome = wait();
    if (!outcome.problem.empty()) problem = outcome.problem;
    if (outcome.expired) break;
  }
  if (saved_step_ == state.step) return;
  throw environment_error(fmt::format("the state of step {} was not saved: {}", state.step,
                                      problem.empty() ? "another rank could not write its part" : problem),
                          last_good_.empty()
                              ? "no checkpoint of this run is there; free the disk and start again"
                              : "the last good checkpoint is " + last_good_ + "; free the disk and resume from it");
}

void RunCheckpoints::end(const checkpoint::SaveOutcome& outcome) {
  told_wait_ = false;
  if (outcome.saved) {
    failures_ = 0;
    saved_step_ = outcome.step;
    last_good_ = outcome.path.string();
    health_.saved(outcome.step);
    if (context_.chaos != nullptr) context_.chaos->saved(outcome.path);
    return settle(outcome);
  }
  ++failures_;
  pending_ = true;
  const double pause = pause_after(failures_);
  retry_at_ = monotonic_seconds() + pause;
  tell_failed(outcome, pause);
}

// The step stalls for the slowest rank.
void RunCheckpoints::settle(const checkpoint::SaveOutcome& outcome) {
  try {
    stall_seconds_ = over_all(context_.world, stall_seconds_, comm::ReduceOp::kMax, comm::at_site("world: stall"));
  } catch (const Fault&) {
    tell_saved(outcome);  // it is saved all the same
    throw;
  }
  tell_saved(outcome);
  if (context_.rank() != 0 || !cadence_.saved(stall_seconds_, outcome.seconds, endured()) || ending_) return;
  tell_cadence(true);
}

// Every generation leaves an event; the user hears of what is new.
void RunCheckpoints::tell_cadence(bool is_new) {
  const std::string text = "checkpoints " + cadence_.describe() + covered_;
  if (is_new) context_.host.note(text);
  if (!context_.recorder) return;
  context_.recorder->event({.level = cadence_.keeps_bound() ? telemetry::Level::kInfo : telemetry::Level::kWarning,
                            .kind = std::string(telemetry::event_kind::kCheckpointCadence),
                            .rank = 0,
                            .step = std::max<std::int64_t>(0, saved_step_),
                            .message = text,
                            .data = cadence_.figures()});
}

void RunCheckpoints::pin_sound() {
  if (context_.rank() != 0) return;
  if (const auto sound = health_.pinned_step()) pin_->move_to(*sound);
  if (const std::string problem = pin_->take_problem(); !problem.empty()) context_.host.note("warning: " + problem);
}

bool RunCheckpoints::is_saving() const { return saver_ && saver_->busy(); }

double RunCheckpoints::at_stake_seconds() const {
  return monotonic_seconds() - (durable_begun_ > 0.0 ? durable_begun_ : started_);
}

double RunCheckpoints::bound_seconds(double step_seconds) const {
  if (!saver_) return 0.0;
  const spec::CheckpointPolicy& policy = context_.job.checkpoint;
  if (cadence_.is_chosen()) return std::max(policy.max_lost_seconds, cadence_.now().worst_lost_seconds);
  constexpr double kIntervals = 2.0;
  const double by_time = policy.every_seconds, by_steps = static_cast<double>(policy.every_steps) * step_seconds;
  const bool both = by_time > 0.0 && by_steps > 0.0;
  return kIntervals * (both ? std::min(by_time, by_steps) : std::max(by_time, by_steps));
}

void RunCheckpoints::tell_saved(const checkpoint::SaveOutcome& outcome) {
  durable_begun_ = begun_;
  if (context_.rank() != 0) return;
  const std::string path = outcome.path.string();
  if (context_.recorder) {
    context_.recorder->event({.kind = std::string(telemetry::event_kind::kCheckpoint),
                              .rank = 0,
                              .step = outcome.step,
                              .message = "saved " + path,
                              .data = {{"path", path},
                                       {"bytes", outcome.bytes},
                                       {"seconds", outcome.seconds},
                                       {"stall_seconds", stall_seconds_}}});
  }
  context_.host.send({{"type", "checkpoint"},
                      {"step", outcome.step},
                      {"path", path},
                      {"bytes", outcome.bytes},
                      {"seconds", outcome.seconds},
                      {"stall_seconds", stall_seconds_}});
}

// Each rank tells what went wrong with it; the first one, what follows from it.
void RunCheckpoints::tell_failed(const checkpoint::SaveOutcome& outcome, double pause_seconds) {
  std::string message;
  if (!outcome.problem.empty()) {
    message = fmt::format("{} could not save step {}: {}", context_.rank_name(), outcome.step, outcome.problem);
    context_.host.note("warning: " + message);
  }
  if (context_.rank() == 0) {
    message = fmt::format("the checkpoint of step {} was not saved ({} of {} ranks failed)", outcome.step,
                          outcome.failed_ranks, context_.world.size());
    context_.host.note(fmt::format("warning: {}; the next try is in {:.0f} s, the last good one is {}", message,
                                   pause_seconds, last_good_.empty() ? "none" : last_good_));
  }
  if (message.empty() || !context_.recorder) return;
  context_.recorder->event({.level = telemetry::Level::kWarning,
                            .kind = std::string(telemetry::event_kind::kCheckpointFailed),
                            .rank = context_.rank(),
                            .step = outcome.step,
                            .message = message,
                            .data = {{"problem", outcome.problem}, {"last_good", last_good_}}});
}

}  // namespace lockstep::engine
