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

namespace lockstep::engine {
namespace {

constexpr double kFirstPauseSeconds = 5.0, kLongestPauseSeconds = 300.0;
constexpr int kLastAttempts = 3;  // to save the last state

double pause_after(int failures) {
  return std::min(kLongestPauseSeconds, kFirstPauseSeconds * std::pow(2.0, failures - 1));
}

double sum_over(comm::Communicator& world, double value) {
  if (world.size() > 1) world.all_reduce({&value, 1, comm::DType::kF64}).wait();
  return value;
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
    : context_(context), health_(health), guard_(std::move(guard)) {
  if (context.request.checkpoint_directory.empty()) return;
  checkpoint::SaverOptions options;
  options.directory = context.request.checkpoint_directory;
  options.rank = context.rank();
  options.world = context.world.size();
  options.keep = context.job.checkpoint.keep;
  options.session = broadcast_text(context.world, checkpoint::new_session(), 0);
  options.timeout_seconds = context.job.checkpoint.timeout_seconds;
  options.files = context.files;
  if (context.lease) options.before_publish = [lease = context.lease] { lease->check(); };
  checkpoint::probe_directory(options, [&](double value) { return sum_over(context.world, value); });
  saver_ = std::make_unique<checkpoint::Saver>(options);
  load_kernels_of_the_look(context.device);
}

bool RunCheckpoints::wants_save() const {
  if (!saver_ || context_.rank() != 0) return false;
  if (failures_ > 0) return !saver_->busy() && monotonic_seconds() >= retry_at_;
  const double every = context_.job.checkpoint.every_seconds;
  return every > 0 && since_save_.seconds() >= every;
}

checkpoint::SaveProgress RunCheckpoints::progress() const {
  return saver_ ? saver_->progress() : checkpoint::SaveProgress{};
}

void RunCheckpoints::after_step(TrainingState& state, const StepResult& result, bool last) {
  if (!saver_) return;
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
  const Stopwatch stalled;  // until all ranks have agreed that the values are finite
  checkpoint::CheckpointPart part = checkpoint_part(state, context_.job, context_.world.size());
  part.facts.extra["layout"] = plan::to_string(context_.run.layout);
  part.facts.extra["run"] = context_.request.run_id;
  part.facts.extra["usual_losses"] = health_.usual_losses();
  // What is in host memory is looked at while it is copied.
  const auto on_device = context_.device.is_cpu() ? std::nullopt : find_not_finite(part);
  saver_->begin(part, [&](const std::optional<std::string>& not_finite) {
    guard_([&] {
      require_finite(on_device ? on_device : not_finite, context_.world,
                     fmt::format("the checkpoint of step {} was not saved", state.step));
    });
  });
  stall_seconds_ = stalled.seconds();
  since_save_.restart();
}

checkpoint::SaveOutcome RunCheckpoints::wait() {
  const checkpoint::SaveOutcome outcome = checkpoint::finish_save(
      *saver_, [&](const checkpoint::SaveProgress& own) { return sum_progress(context_.world, own); });
  end(outcome);
  return outcome;
}

void RunCheckpoints::finish() {
  if (saver_ && saver_->busy()) wait();
}

void RunCheckpoints::save_last(TrainingState& state) {
  if (!saver_) return;
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
    return tell_saved(outcome);
  }
  ++failures_;
  pending_ = true;
  const double pause = pause_after(failures_);
  retry_at_ = monotonic_seconds() + pause;
  tell_failed(outcome, pause);
}

// The newest that proved sound is not rotated out by later ones, which may not be.
void RunCheckpoints::pin_sound() {
  const auto sound = health_.pinned_step();
  if (context_.rank() != 0 || !sound || sound == pinned_) return;
  const std::filesystem::path folder = context_.request.checkpoint_directory;
  const auto pin = [&](std::int64_t step, bool pinned) {
    const std::filesystem::path path = folder / checkpoint::step_folder_name(step);
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored)) checkpoint::pin_checkpoint(path, pinned, *context_.files);
  };
  try {
    pin(*sound, true);
    if (pinned_) pin(*pinned_, false);
    pinned_ = sound;
  } catch (const UserError& error) {
    context_.host.note(std::string("warning: ") + error.what());
  }
}

void RunCheckpoints::tell_saved(const checkpoint::SaveOutcome& outcome) {
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
