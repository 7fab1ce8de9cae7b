#include "lockstep/engine/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/health_note.h"
#include "lockstep/cost/snapshots.h"
#include "lockstep/engine/chaos.h"
#include "lockstep/engine/control.h"
#include "lockstep/engine/peer_state.h"
#include "lockstep/engine/record_places.h"
#include "lockstep/engine/resume_check.h"
#include "lockstep/plan/plan.h"
#include "lockstep/spec/evaluation_metrics.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::engine {
namespace {

using checkpoint::CheckpointPart;

constexpr double kProgressSeconds = 0.1;
constexpr double kNoticeSeconds = 1.0;  // between two looks for checkpoint.preempt_file
constexpr double kRecentDecay = 0.9;
constexpr double kMemorySeconds = 0.5;   // between two looks at the peak
constexpr double kLedgerSeconds = 30.0;  // between two writings of the ledger

DeviceStepMaker step_maker(const RunContext& context) {
  if (!context.request.options.general_step) return context.make_device_step;
  return [](const spec::Job&, const plan::Run&, torch::Device) {
    return DeviceStepChoice{nullptr, "--general-step was given"};
  };
}

// What a checkpoint keeps for RunHealth; nothing where an older version wrote it.
std::vector<double> losses_in(const nlohmann::json& extra) {
  std::vector<double> losses;
  if (!extra.is_object() || !extra.contains("usual_losses")) return losses;
  for (const nlohmann::json& loss : extra.at("usual_losses")) {
    if (loss.is_number()) losses.push_back(loss.get<double>());
  }
  return losses;
}

bool counts_tokens(const TrainingState& state) { return state.datasets.train->tokens_per_sample() > 0; }

}  // namespace

void ThroughputMeter::add(double items, double seconds) {
  recent_items_ = kRecentDecay * recent_items_ + items;
  recent_seconds_ = kRecentDecay * recent_seconds_ + seconds;
  if (++seen_ <= warmup_) return;
  items_ += items;
  seconds_ += seconds;
}

double ThroughputMeter::overall() const { return seconds_ > 0 ? items_ / seconds_ : recent(); }
double ThroughputMeter::recent() const { return recent_seconds_ > 0 ? recent_items_ / recent_seconds_ : 0.0; }
double ThroughputMeter::seconds_per_step() const {
  const std::int64_t counted = seen_ - warmup_;
  return counted > 0 ? seconds_ / static_cast<double>(counted) : 0.0;
}

Trainer::Trainer(RunContext& context)
    : context_(context),
      health_(context.job.health, context.job.precision == spec::Precision::kFp16),
      checkpoints_(context, health_, [this](const std::function<void()>& check) { guarded_check(check); }),
      rollback_states_(context.job.health),
      replica_check_(context.world) {
  const KeptBatch batch = settle_batch();
  const bool rejoins = context.held != nullptr && context.generation > 1;
  const bool begins = !rejoins && context.request.resume_from.empty();
  state_ = build_training_state(
      context.job, context.run, context.world,
      {context.device, step_maker(context), context.make_model, batch.data_ranks, batch.rate_factor, begins,
       context.log, [host = context.host](const std::string& text) { host.note(text); }});
  record_places(context);
  if (context.rank() == 0) tell_what_it_starts_from();
  if (rejoins) rejoin();
  if (!rejoins && !begins) resume();
  first_step_ = replicas_agreed_ = state_.step;
  meter_ = ThroughputMeter(state_.total_steps - state_.step);
}

// A run that goes on has the steps that it had, on any number of ranks.
KeptBatch Trainer::settle_batch() {
  const auto* held = context_.generation > 1 ? context_.held : nullptr;
  KeptBatch batch =
      keep_batch(context_.job, context_.run, find_saved_batch(context_.world, held, context_.request.resume_from));
  plan::set_schedule(context_.run, batch.schedule);
  if (context_.rank() == 0 && !batch.note.empty()) context_.host.note(batch.note);
  return batch;
}

void Trainer::tell_what_it_starts_from() const {
  context_.host.note("data: " + state_.datasets.train->describe());
  const std::string step = state_.executor->describe();
  if (!step.empty()) context_.host.note("step: " + step);
  if (context_.job.health.replica_check_every > 0 && !context_.run.compares_replicas()) {
    context_.host.note(
        "replicas are not compared: devices of different kinds, or onebit and powersgd beside tp and pp, round "
        "differently");
  }
  if (state_.executor->initial_parameters().empty()) return;
  context_.host.note(fmt::format("{} lacks these, they begin with random values: {}", context_.job.weights,
                                 join(state_.executor->initial_parameters(), ", ")));
}

void Trainer::resume() {
  const auto reader = checkpoint::CheckpointReader::open(context_.request.resume_from);
  reader.prefer(context_.rank());
  const checkpoint::CheckpointFacts facts = reader.facts(context_.rank());
  const checkpoint::TensorMap own = reader.rank_tensors(context_.rank());
  const std::vector<std::string> changes = check_resume(
      facts.job_yaml, facts.loader,
      {context_.job, state_.data_contents,
       state_.global_batch_at(
           facts.step, {facts.loader.value("epoch", std::int64_t{0}), facts.loader.value("samples", std::int64_t{0})}),
       context_.request.options.accept_changes});
  const std::string remark = restore(state_, SavedState{facts, reader, own}, context_.job, context_.world.size());
  checkpoints_.resumed_at(state_.step);
  checkpoints_.remember(facts.extra);
  health_.resumed(state_.step, losses_in(facts.extra));
  if (context_.rank() != 0) return;
  for (const std::string& change : changes) context_.host.note(change);
  if (state_.step >= state_.total_steps) {
    context_.host.note(fmt::format("nothing left to do: step {} of {}; raise steps, tokens or epochs to go on",
                                   state_.step, state_.total_steps));
  }
  context_.host.note(fmt::format("resumed from {} at step {}", context_.request.resume_from, state_.step));
  context_.host.note(fmt::format("rank 0 read {} of the checkpoint's {}, with at most {} of memory beside the state",
                                 format_bytes(static_cast<double>(reader.bytes_read())),
                                 format_bytes(static_cast<double>(reader.info().bytes)),
                                 format_bytes(static_cast<double>(reader.memory_bytes()))));
  if (!remark.empty()) context_.host.note(remark);
  if (context_.recorder) {
    context_.recorder->event(
        {.kind = std::string(telemetry::event_kind::kResume),
         .rank = 0,
         .step = state_.step,
         .message = "resumed from " + context_.request.resume_from,
         .data = {{"path", context_.request.resume_from}, {"step", state_.step}, {"changes", changes}}});
  }
}

// A peer is lost: what this rank has in memory goes on in the next generation.
void Trainer::hold() {
  if (context_.held == nullptr) return;
  if (discards_state_) return context_.held->clear();
  hold_state(context_, state_, snapshots_.get());
}

// Before the first step of a generation. From then on no rank changes its state before the copies of it are complete.
void Trainer::begin_snapshots() {
  snapshots_ = std::make_unique<Snapshots>(context_, state_);
  snapshots_->begin(state_);
  if (snapshots_->active()) {
    state_.before_update = [this] { snapshots_->wait(); };
  } else if (context_.held != nullptr) {
    context_.held->clear();
  }
  checkpoints_.start(covered_by_memory());
}

// Which failures go back to the memory of the ranks and not to a checkpoint.
std::string Trainer::covered_by_memory() const {
  const bool recovers = context_.held != nullptr && context_.job.recovery.restarts > 0 && context_.world.size() > 1;
  if (!recovers || (!snapshots_->active() && cost::snapshot_memory(context_.run).needed)) return "";
  return fmt::format("; what a single lost {0} held is restored from the other {0}s' memory",
                     context_.request.ranks.one_node ? "rank" : "node");
}

// In a generation after the first: from the memory of the ranks where they have the whole state together, else from the
// last checkpoint, else from the beginning.
void Trainer::rejoin() {
  PeerState peers(context_.world, *context_.held, tensors_of(live_part(state_, context_.job, context_.world.size())));
  if (context_.chaos != nullptr) context_.chaos->recovering();
  if (peers.step()) {
    resume_from(peers);
    checkpoints_.recovered_from_memory();
  } else if (!context_.request.resume_from.empty()) {
    resume();
  } else {
    state_.executor->begin_weights();
  }
  // What was read from stays for a failure before the first snapshot is whole.
  std::erase_if(*context_.held, [&](const CheckpointPart& part) { return part.facts.step != peers.step(); });
  const std::int64_t lost = std::max<std::int64_t>(0, peers.newest_seen() - state_.step);
  state_.ledger.add_again(state_.step + 1, state_.step + lost);
  if (context_.rank() != 0) return;
  context_.control->recovered(peers.newest_seen() < 0 ? -1 : lost, state_.step);
  const std::string from = peers.step() ? "the memory of the ranks" : "disk";
  context_.host.note(fmt::format("goes on after step {} from {}{}", state_.step, from,
                                 lost > 0 ? fmt::format(", {} steps are done again", lost) : ""));
  if (!context_.recorder) return;
  context_.recorder->event(
      {.kind = std::string(telemetry::event_kind::kResume),
       .rank = 0,
       .step = state_.step,
       .message = fmt::format("generation {}: state from {}", context_.generation, from),
       .data = {{"generation", context_.generation}, {"step", state_.step}, {"lost_steps", lost}}});
  tell_lost_records();
}

// Records that a lost rank had not written are gone with it; those of steps that are done again come again.
void Trainer::tell_lost_records() {
  std::int64_t recorded = 0;
  try {
    const auto store = telemetry::open_run_store(context_.request.home);
    recorded = store->last_step(context_.request.run_id, std::string(telemetry::metric::kLoss), 0).value_or(0);
  } catch (const UserError&) {
    return;  // a store that cannot be read; the recorder says so when it cannot write either
  }
  if (recorded >= state_.step) return;
  const std::string text = recorded + 1 == state_.step
                               ? fmt::format("step {} has no record", state_.step)
                               : fmt::format("steps {} to {} have no record", recorded + 1, state_.step);
  context_.recorder->event({.level = telemetry::Level::kWarning,
                            .kind = std::string(telemetry::event_kind::kRecordsLost),
                            .rank = 0,
                            .step = state_.step,
                            .message = text + ": the process that was the first rank ended before it had written them",
                            .data = {{"first_step", recorded + 1}, {"last_step", state_.step}}});
}

void Trainer::resume_from(PeerState& peers) {
  restore(state_, peers, context_.job, context_.world.size());
  if (!peers.has_rank_state() && context_.rank() == 0) {
    context_.host.note("a lost rank's error feedback is gone: that of the gradient compression starts anew");
  }
}

nlohmann::json Trainer::run() {
  try {
    return train();
  } catch (const Fault&) {
    hold();
    throw;
  }
}

nlohmann::json Trainer::train() {
  begin_snapshots();
  running_.restart();
  if (state_.datasets.evaluation != nullptr && context_.job.evaluation.every_steps > 0 && state_.step == 0) {
    run_evaluation();
  }
  std::function<bool(double, double)> may_update;
  if (context_.job.health.judges_updates()) {
    may_update = [this](double loss, double gradient_norm) { return health_.may_update(loss, gradient_norm); };
  }
  bool stopped = false;
  if (context_.generation > 1 && state_.step == state_.total_steps) end_again();
  records_.begin(state_.step);
  while (state_.step < state_.total_steps && !stopped) {
    if (health_.is_healthy()) rollback_states_.keep(state_, context_.job, context_.world.size());
    if (context_.chaos != nullptr) context_.chaos->before_step(state_);
    const StepResult result = run_step(state_, wishes(), may_update);
    const std::int64_t done = state_.step;
    try {
      if (context_.chaos != nullptr) context_.chaos->after_step(result.seconds);
      stopped = finish_step(result);
    } catch (...) {
      record_step(result, done);  // it is done, whatever happened behind it
      throw;
    }
    record_step(result, done);
  }
  snapshots_->finish();
  checkpoints_.finish();
  tell_lost_spans();
  write_ledger();
  if (stopped) return summary(static_cast<int>(is_requeued() ? ExitCode::kRetry : ExitCode::kInterrupted));
  finish_soundly();
  export_weights();
  return summary(0);
}

// What follows a step; returns whether the run stops before its last one.
bool Trainer::finish_step(const StepResult& result) {
  after_step(result);
  if (!health_.rollback_reason().empty()) {
    roll_back();
    return false;
  }
  check_replicas();
  snapshots_->after_step(state_, result);
  const std::int64_t every = context_.job.evaluation.every_steps;
  const bool last = state_.step == state_.total_steps;
  const bool stopped = result.wishes.stop && !last;  // the last step leaves nothing to stop
  const bool evaluating = state_.datasets.evaluation != nullptr;
  if (evaluating && !stopped && (last || (every > 0 && state_.step % every == 0))) run_evaluation();
  const bool save_now = stopped || (last && context_.job.checkpoint.at_end);
  checkpoints_.after_step(state_, result, save_now);
  if (save_now) checkpoints_.save_last(state_);
  return stopped;
}

// A rank was lost behind the last step: what follows that step is done by this generation.
void Trainer::end_again() {
  if (state_.datasets.evaluation != nullptr) run_evaluation();
  if (context_.job.checkpoint.at_end) checkpoints_.save_last(state_);
}

// The file of a spot notice: whoever sees it first asks all to stop.
bool Trainer::is_preempted() {
  const std::string& file = context_.job.checkpoint.preempt_file;
  if (preempted_ || file.empty() || (state_.step > first_step_ && since_notice_.seconds() < kNoticeSeconds)) {
    return preempted_;
  }
  since_notice_.restart();
  std::error_code ignored;
  preempted_ = std::filesystem::exists(file, ignored);
  if (preempted_) context_.host.note("checkpoint.preempt_file " + file + " is there: the run saves and ends");
  return preempted_;
}

// Any rank may know why the run was stopped.
bool Trainer::is_requeued() {
  std::int64_t ranks = preempted_ || context_.host.requeue_requested() ? 1 : 0;
  if (context_.world.size() > 1) context_.world.all_reduce({&ranks, 1, comm::DType::kI64}).wait();
  return ranks > 0;
}

StepWishes Trainer::wishes() {
  StepWishes wishes;
  wishes.stop = context_.host.stop_requested() || is_preempted();
  wishes.save = checkpoints_.wants_save();
  wishes.saving = checkpoints_.progress();
  wishes.seconds = records_.last_seconds();
  wishes.comm_seconds = records_.last_comm_seconds();
  wishes.spoiled = context_.chaos != nullptr && context_.chaos->spoils_gradient();
  return wishes;
}

void Trainer::after_step(const StepResult& result) {
  if (context_.control != nullptr) context_.control->stepped(state_.step);
  data_seconds_ += result.data_seconds;
  meter_.add(static_cast<double>(counts_tokens(state_) ? result.tokens : result.samples), result.seconds);
  check_loss(result);
  if (since_ledger_.seconds() > kLedgerSeconds || state_.step == first_step_ + 1) write_ledger();
  if (context_.rank() == 0) report_progress(result);
  if (context_.rank() == 0 && context_.request.options.report_steps) report_step(result);
}

void Trainer::check_loss(const StepResult& result) {
  guarded_check([&] {
    record_health(health_.observe(state_.step, result.loss, result.skipped, result.gradient_norm, result.withheld),
                  result);
  });
}

namespace {

std::string health_text(HealthEvent event, std::int64_t step, const StepResult& result, const RunHealth& health) {
  switch (event) {
    case HealthEvent::kNone:
      return "";
    case HealthEvent::kSkipped:
      return fmt::format("step {} was skipped: its gradient is not finite", step);
    case HealthEvent::kWithheld:
      return fmt::format(
          "step {} was skipped: its loss is {:.6g} ({:.6g} is usual), its gradient's norm {:.6g} ({:.6g})", step,
          result.loss, health.usual_loss(), result.gradient_norm, health.usual_norm());
    case HealthEvent::kSpikeBegan:
      return fmt::format("the loss is {:.6g} at step {}, {:.6g} was usual", result.loss, step, health.usual_loss());
    case HealthEvent::kSpikeOver:
      return fmt::format("the loss is {:.6g} at step {}: as usual again", result.loss, step);
    case HealthEvent::kOutlier:
      return fmt::format("the gradient's norm is {:.6g} at step {}, {:.6g} is usual", result.gradient_norm, step,
                         health.usual_norm());
  }
  return "";
}

std::string_view kind_of(HealthEvent event) {
  if (event == HealthEvent::kOutlier) return telemetry::event_kind::kOutlier;
  const bool skip = event == HealthEvent::kSkipped || event == HealthEvent::kWithheld;
  return skip ? telemetry::event_kind::kSkip : telemetry::event_kind::kSpike;
}

}  // namespace

void Trainer::record_health(HealthEvent event, const StepResult& result) {
  if (event == HealthEvent::kNone || context_.rank() != 0) return;
  const std::string text = health_text(event, state_.step, result, health_);
  if (event == HealthEvent::kSpikeBegan || event == HealthEvent::kWithheld) context_.host.note("warning: " + text);
  if (!context_.recorder) return;
  const bool over = event == HealthEvent::kSpikeOver;
  context_.recorder->event({.level = over ? telemetry::Level::kInfo : telemetry::Level::kWarning,
                            .kind = std::string(kind_of(event)),
                            .rank = 0,
                            .step = state_.step,
                            .message = text,
                            .data = {{"loss", result.loss}, {"gradient_norm", result.gradient_norm}}});
}

void Trainer::roll_back() {
  const std::string why = health_.rollback_reason();
  const std::int64_t from = state_.step;
  const data::Position behind = state_.position;
  const std::vector<checkpoint::CheckpointPart>& kept = rollback_states_.go_back(from);
  LOCKSTEP_ASSERT(!kept.empty(), "a state is kept before the first step");
  PeerState own(context_.world, kept);
  resume_from(own);
  const data::Position began = state_.position;
  // The data of the steps that are undone does not come again.
  state_.loader->seek(behind, state_.step);
  state_.position = behind;
  const std::int64_t size = state_.loader->dataset().size();
  const std::int64_t samples = (behind.epoch - began.epoch) * size + behind.samples - began.samples;
  state_.ledger.leave_out(samples);
  snapshots_->begin(state_);  // a loss must not bring the undone steps back
  health_.rolled_back();
  checkpoints_.resumed_at(state_.step);
  if (context_.rank() != 0) return;
  const std::string text = fmt::format("{}: back to step {}, without the {} samples since ({} of {} rollbacks)", why,
                                       state_.step, samples, health_.rollbacks(), context_.job.health.most_rollbacks);
  context_.host.note("warning: " + text);
  if (!context_.recorder) return;
  context_.recorder->event(
      {.level = telemetry::Level::kWarning,
       .kind = std::string(telemetry::event_kind::kRollback),
       .rank = 0,
       .step = from,
       .message = text,
       .data = {{"from_step", from}, {"to_step", state_.step}, {"samples", samples}, {"reason", why}}});
}

void Trainer::check_replicas() {
  const std::int64_t every = context_.job.health.replica_check_every;
  const bool last = state_.step == state_.total_steps;
  if (!context_.run.compares_replicas() || context_.world.size() == 1 || (state_.step % every != 0 && !last)) return;
  const telemetry::SpanScope span({.name = "compare replicas"});
  const ReplicaReport report = replica_check_.compare(*state_.executor);
  ++replica_checks_;
  replica_seconds_ += report.seconds;
  if (!report.agrees()) fail_replicas(report);
  replicas_agreed_ = state_.step;
  if (context_.rank() != 0 || replica_checks_ > 1 || report.tensors == 0) return;
  context_.host.note(fmt::format("replicas agree after step {}: {} tensors ({}) compared in {}", state_.step,
                                 report.tensors, format_bytes(report.bytes), format_seconds(report.seconds)));
}

// A rank that the others outvote loses its state and gets theirs, where an agent forms the ranks anew. Where nobody
// knows who is right the run ends.
void Trainer::fail_replicas(const ReplicaReport& report) {
  std::vector<std::string> hosts;
  hosts.reserve(static_cast<std::size_t>(context_.world.size()));
  for (int rank = 0; rank < context_.world.size(); ++rank) {
    hosts.push_back(broadcast_text(context_.world, telemetry::host_name(), rank));
  }
  const std::string text = describe(report, state_.step, hosts);
  health_.distrust_after(replicas_agreed_);
  if (context_.rank() == 0) context_.host.note("warning: " + text);
  if (context_.rank() == 0 && context_.recorder) {
    context_.recorder->event({.level = telemetry::Level::kError,
                              .kind = std::string(telemetry::event_kind::kReplicas),
                              .rank = report.odd_ranks.empty() ? 0 : report.odd_ranks.front(),
                              .step = state_.step,
                              .message = text,
                              .data = {{"ranks", report.odd_ranks},
                                       {"tensor", report.tensor},
                                       {"holders", report.holders},
                                       {"agreed_step", replicas_agreed_}}});
  }
  if (report.odd_ranks.empty()) {
    guarded_check([&] {
      throw UserError(ExitCode::kRunFailed, text,
                      fmt::format("they agreed after step {}: --resume a checkpoint up to it", replicas_agreed_));
    });
  }
  discards_state_ = std::ranges::find(report.odd_ranks, context_.rank()) != report.odd_ranks.end();
  throw Fault(FaultKind::kPeerLost, report.odd_ranks.front(), text);
}

void Trainer::guarded_check(const std::function<void()>& check) {
  try {
    check();
  } catch (const UserError& error) {
    const std::string& folder = context_.request.checkpoint_directory;
    if (context_.rank() == 0 && !folder.empty() && health_.pinned_step()) {
      checkpoint::write_health_note(folder, {*health_.pinned_step(), state_.step, error.what()});
    }
    throw;
  }
}

// Weights that are not numbers are not a result, whatever the last loss was.
void Trainer::finish_soundly() {
  guarded_check([&] {
    health_.require_sound_end(state_.step);
    if (!evaluations_.empty() && !std::isfinite(evaluations_.back().at("loss").get<double>())) {
      throw UserError(ExitCode::kRunFailed, fmt::format("the held-out loss after step {} is not finite", state_.step),
                      "the weights are not usable; see the losses with `lockstep report last`");
    }
    if (context_.request.options.export_folder.empty() || checkpoints_.saved_step() == state_.step) return;
    checkpoint::CheckpointPart part;
    state_.executor->save(part);
    require_finite(find_not_finite(part), context_.world, "nothing was exported");
  });
}

void Trainer::record_step(const StepResult& result, std::int64_t step) {
  StepRecords::Facts facts;
  facts.step = step;
  facts.counts_tokens = counts_tokens(state_);
  facts.items = static_cast<double>(facts.counts_tokens ? result.tokens : result.samples);
  if (context_.device.is_cpu()) facts.allocated_bytes = static_cast<double>(memory_.bytes());
  facts.efficiency = efficiency(facts.items / result.seconds);
  facts.peak_memory_bytes = peak_memory_bytes();
  records_.end(result, facts);
  const StepRecords::Last& last = records_.last();
  if (context_.control != nullptr)
    context_.control->was_busy(last.seconds - last.comm_seconds - last.checkpoint_seconds);
  if (alerts_.is_on()) alerts_.stepped(sample_of(result, facts));
}

// What the rules of alerts look at.
telemetry::StepSample Trainer::sample_of(const StepResult& result, const StepRecords::Facts& facts) const {
  const StepRecords::Last& last = records_.last();
  telemetry::StepSample sample;
  sample.step = facts.step;
  sample.time = unix_seconds();
  sample.seconds = last.seconds - last.checkpoint_seconds;
  sample.disturbed = last.checkpoint_seconds > 0.0 || checkpoints_.is_saving();
  sample.items = static_cast<double>(result.samples);
  sample.loss = result.loss;
  sample.gradient_norm = result.gradient_norm;
  sample.skipped = result.skipped;
  sample.data_seconds = last.data_seconds;
  if (facts.allocated_bytes > 0) sample.memory_bytes = facts.allocated_bytes;
  sample.checkpoint_age_seconds = checkpoints_.at_stake_seconds();
  sample.checkpoint_bound_seconds = checkpoints_.bound_seconds(meter_.seconds_per_step());
  if (const double predicted = predicted_items_per_second(); predicted > 0) {
    const plan::Interval seconds = context_.request.plan->best.prediction->step_seconds;
    sample.predicted_seconds = facts.items / predicted;
    sample.predicted_slowest_seconds = sample.predicted_seconds * seconds.high / seconds.expected;
  }
  return sample;
}

// Looking it up costs more than all the rest of a record, and it changes seldom.
double Trainer::peak_memory_bytes() {
  if (peak_memory_ == 0.0 || since_memory_.seconds() > kMemorySeconds) {
    peak_memory_ = state_.executor->figures().peak_memory_bytes;
    since_memory_.restart();
  }
  return peak_memory_;
}

void Trainer::tell_lost_spans() {
  if (records_.lost_spans() == 0) return;
  const std::string text = fmt::format("{}: {} spans were more than a step keeps and are not recorded",
                                       context_.rank_name(), records_.lost_spans());
  context_.host.note("warning: " + text);
  context_.recorder->event({.level = telemetry::Level::kWarning,
                            .kind = std::string(telemetry::event_kind::kRecordsLost),
                            .rank = context_.rank(),
                            .step = state_.step,
                            .message = text,
                            .data = {{"spans", records_.lost_spans()}}});
}

// For people; the run itself goes on from what is in its state.
void Trainer::write_ledger() {
  since_ledger_.restart();
  if (context_.rank() != 0 || context_.request.home.empty()) return;
  try {
    const std::filesystem::path file = telemetry::ledger_file(context_.request.home, context_.request.run_id);
    make_folders(file.parent_path());
    replace_file(file, telemetry::to_json(state_.ledger).dump() + "\n");
  } catch (const UserError& error) {
    if (!std::exchange(told_ledger_, true)) context_.host.note(std::string("warning: ") + error.what());
  }
}

void Trainer::report_progress(const StepResult& result) {
  const double now = monotonic_seconds();
  if (now - last_progress_ < kProgressSeconds && state_.step != state_.total_steps) return;
  last_progress_ = now;
  nlohmann::json message = {{"type", "progress"},
                            {"step", state_.step},
                            {"steps", state_.total_steps},
                            {"loss", result.loss},
                            {"rate", meter_.recent()},
                            {"unit", counts_tokens(state_) ? "tokens" : "samples"},
                            {"gradient_norm", result.gradient_norm},
                            {"learning_rate", result.learning_rate},
                            {"memory_bytes", peak_memory_bytes()}};
  if (const auto value = efficiency(meter_.recent())) message["efficiency"] = *value;
  const double per_step = running_.seconds() / static_cast<double>(state_.step - first_step_);
  message["eta_seconds"] = per_step * static_cast<double>(state_.total_steps - state_.step);
  context_.host.send(message);
}

// Every step by itself: what a tuner measures.
void Trainer::report_step(const StepResult& result) {
  const bool tokens = counts_tokens(state_);
  const double items = static_cast<double>(tokens ? result.tokens : result.samples);
  context_.host.send({{"type", "step"},
                      {"step", state_.step},
                      {"seconds", result.seconds},
                      {"loss", result.loss},
                      {tokens ? "tokens_per_second" : "samples_per_second", items / result.seconds}});
}

void Trainer::run_evaluation() {
  const EvaluationResult result = evaluate(state_, context_.job, context_.run.layout, context_.world, [this] {
    if (context_.control != nullptr) context_.control->worked();
  });
  const bool counts_classes = !spec::metric_problem("accuracy", context_.job);
  nlohmann::json entry = {{"step", state_.step}, {"loss", result.loss}, {"targets", result.targets}};
  entry["accuracy"] = counts_classes ? nlohmann::json(result.accuracy) : nlohmann::json();
  if (!result.metrics.empty()) entry["metrics"] = values_json(result.metrics);
  evaluations_.push_back(entry);
  if (context_.rank() != 0) return;
  if (context_.recorder) {
    std::map<std::string, double> figures = {{std::string(telemetry::metric::kEvaluationLoss), result.loss}};
    if (counts_classes) figures[std::string(telemetry::metric::kEvaluationAccuracy)] = result.accuracy;
    for (const auto& [name, value] : result.metrics) figures[telemetry::metric::evaluation_metric(name)] = value;
    std::vector<telemetry::Metric> recorded;
    recorded.reserve(figures.size());
    for (const auto& [name, value] : figures) recorded.push_back({name, value});
    context_.recorder->metrics(0, state_.step, std::move(recorded));
  }
  entry["type"] = "evaluation";
  context_.host.send(entry);
}

void Trainer::export_weights() {
  const std::string& folder = context_.request.options.export_folder;
  if (folder.empty()) return;
  const std::string tokenizer = context_.job.data.tokenizer == "bytes" ? "" : context_.job.data.tokenizer;
  state_.executor->export_weights(folder, tokenizer);
  if (context_.rank() == 0) context_.host.note("wrote " + folder + " for transformers");
}

double Trainer::predicted_items_per_second() const {
  const std::optional<plan::Plan>& plan = context_.request.plan;
  if (!plan || !plan->best.prediction) return 0.0;
  const plan::Prediction& prediction = *plan->best.prediction;
  // Samples that do not divide evenly were priced as whole micro-batches.
  const std::int64_t priced = plan->best.batch.global_sequences, global = context_.job.batch.global;
  const double share = global > 0 ? static_cast<double>(global) / static_cast<double>(priced) : 1.0;
  return share * (counts_tokens(state_) ? prediction.tokens_per_second : prediction.samples_per_second).expected;
}

// The plan's MFU belongs to its predicted rate; the measured one scales with the measured rate.
std::optional<double> Trainer::efficiency(double items_per_second) const {
  const double predicted = predicted_items_per_second();
  if (predicted <= 0) return std::nullopt;
  const double mfu = context_.request.plan->best.prediction->mfu.expected;
  if (mfu <= 0) return std::nullopt;
  return mfu * items_per_second / predicted;
}

nlohmann::json Trainer::summary(int exit_code) const {
  const bool tokens = counts_tokens(state_);
  const double rate = meter_.overall();
  const double predicted = predicted_items_per_second();
  const auto measured_efficiency = efficiency(rate);
  const ExecutorFigures figures = state_.executor->figures();
  nlohmann::json result = {
      {"schema", "lockstep.run/1"},
      {"run", context_.request.run_id},
      {"status", exit_code == 0 ? "done" : "interrupted"},
      {"exit_code", exit_code},
      {"steps", state_.step},
      {"steps_total", state_.total_steps},
      {"device", context_.device.str()},
      {"peak_memory_bytes", figures.peak_memory_bytes},
      {"peak_allocated_bytes",
       context_.device.is_cpu() ? memory_.peak_bytes() : static_cast<std::int64_t>(figures.peak_memory_bytes)},
      {"offloaded_bytes", figures.offloaded_bytes},
      {"restarts", 0},
      {"lost_steps", 0},
      {"world", context_.world.size()},
      {"backend", context_.world.backend_name()},
      {"precision", spec::to_string(context_.job.precision)},
      {"parameters", spec::parameter_count(context_.job.model)},
      {"layout", plan::to_string(context_.run.layout)},
      {"seconds_per_step", meter_.seconds_per_step()},
      {"training_seconds", running_.seconds()},
      {"loader_stall_seconds", data_seconds_},
      {"skipped_steps", figures.skipped_steps + health_.withheld_steps()},
      {"rollbacks", health_.rollbacks()},
      {"replica_checks", replica_checks_},
      {"replica_check_seconds", replica_seconds_},
      {"communicated_bytes", figures.communicated_bytes},
      {"evaluations", evaluations_}};
  if (snapshots_->active()) result["snapshots"] = snapshots_->summary();
  const bool any = state_.step > first_step_;        // a finished run that is resumed has nothing to tell
  const bool told = any || context_.generation > 1;  // by this generation, or by the one before
  result["final_loss"] = told && state_.last_loss ? nlohmann::json(*state_.last_loss) : nlohmann::json();
  result["tokens_per_second"] = tokens && any ? nlohmann::json(rate) : nlohmann::json();
  result["samples_per_second"] = !tokens && any ? nlohmann::json(rate) : nlohmann::json();
  if (tokens && any) {
    result["sequences_per_second"] = rate / static_cast<double>(state_.datasets.train->tokens_per_sample());
  }
  result["predicted_tokens_per_second"] = tokens && predicted > 0 ? nlohmann::json(predicted) : nlohmann::json();
  result["predicted_samples_per_second"] = !tokens && predicted > 0 ? nlohmann::json(predicted) : nlohmann::json();
  result["mfu_or_efficiency"] = measured_efficiency && any ? nlohmann::json(*measured_efficiency) : nlohmann::json();
  return result;
}

}  // namespace lockstep::engine
