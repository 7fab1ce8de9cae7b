#include "lockstep/tune/study/study.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <set>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/tune/models/statistics.h"
#include "lockstep/tune/study/racing.h"
#include "lockstep/tune/study/study_lanes.h"
#include "lockstep/tune/study/study_ledger.h"

namespace lockstep::tune {
namespace {

constexpr double kTickSeconds = 0.1;   // how often a stop is checked for and progress is reported
constexpr double kAliveSeconds = 1.0;  // how often a running trial is recorded in the journal
// Failures alike from the first trial on: then the program is at fault, not the setting.
constexpr std::size_t kHopeless = 6;
constexpr std::size_t kHopelessDefault = 3;  // where the default, which somebody runs, is among them

// A trial under way.
struct Running {
  Trial trial;
  Proposal proposal;
  double devices = 1;
  Stopwatch watch;
  double told_alive = 0;
};

void set_figures(Trial& trial) {
  if (!measured(trial)) return;
  const LaunchSummary launch = summarize_launch(trial.samples);
  trial.throughput = launch.mean;
  trial.relative_error = launch.mean > 0 ? launch.standard_error / launch.mean : 0;
}

// Samples come one by one; looking at them again is worth it when there are a tenth more.
std::function<bool(std::span<const double>)> make_keep_going(const Race& race) {
  return [race, next = std::size_t{0}](std::span<const double> samples) mutable {
    if (samples.size() < next) return true;
    next = samples.size() + std::max<std::size_t>(1, samples.size() / 10);
    return !race.is_hopeless(samples);
  };
}

// One run of run_study(): owned and used by one thread, but for the lanes.
class StudyRun {
 public:
  StudyRun(const Strategy& strategy, const std::vector<std::unique_ptr<Evaluator>>& evaluators, Journal& journal,
           const std::atomic<bool>* stop, const std::function<void(const StudyProgress&)>& progress)
      : strategy_(strategy),
        evaluators_(evaluators),
        journal_(journal),
        stop_(stop),
        progress_(progress),
        history_(journal.trials()),
        interrupted_gpu_seconds_(journal.interrupted_gpu_seconds()),
        ledger_(strategy.options().gpu_seconds, interrupted_gpu_seconds_) {
    sort_history();
    for (const Trial& trial : history_) ledger_.charge(trial);
  }

  StudyResult run() {
    {
      Lanes lanes(evaluators_);
      loop(lanes);
    }
    if (error_) std::rethrow_exception(error_);
    StudyResult result;
    result.conclusion = conclude(strategy_, history_);
    result.interrupted = stopping() && !over_;
    result.interrupted_gpu_seconds = interrupted_gpu_seconds_;
    result.out_of_budget = out_of_budget_;
    result.trials = std::move(history_);
    if (!result.interrupted) journal_.conclude(to_json(result.conclusion, strategy_.space()));
    return result;
  }

 private:
  bool stopping() const { return stop_ != nullptr && *stop_; }

  void loop(Lanes& lanes) {
    while (true) {
      if (stopping() || error_) lanes.halt();
      while (!stopping() && !error_ && lanes.idle() && start_next(lanes)) {
      }
      if (lanes.running() == 0) return;
      std::optional<LaneResult> result = lanes.wait(kTickSeconds);
      if (result) {
        finish(std::move(*result));
      } else {
        tell_alive();
      }
    }
  }

  // Proposes, charges and starts one trial; false when there is none to start now.
  bool start_next(Lanes& lanes) {
    over_ = false;
    out_of_budget_ = false;
    give_up_when_hopeless();
    std::vector<Trial> pending;
    for (const auto& [lane, running] : running_) pending.push_back(running.trial);
    const std::size_t lane = *lanes.idle();
    const std::optional<Proposal> proposal = strategy_.next(history_, pending);
    over_ = !proposal;
    if (!proposal) {
      const auto made = static_cast<std::int64_t>(history_.size() + pending.size());
      out_of_budget_ = strategy_.options().gpu_seconds > 0 && made < strategy_.options().trials;
      return false;
    }
    const double devices = evaluators_[lane]->devices(proposal->config);
    const double needed = needed_seconds(history_, proposal->budget_seconds, evaluators_[lane]->adapts_to_budget());
    std::optional<Allowance> allowance = ledger_.allow(proposal->budget_seconds, needed, devices);
    over_ = out_of_budget_ = !allowance;
    if (!allowance) return false;
    if (evaluators_.size() > 1 && allowance->hard_seconds > 0) {  // the others must be paid from what is left, too
      allowance->hard_seconds = std::min(allowance->hard_seconds, 1.1 * allowance->budget_seconds + 2);
    }

    Running running{.proposal = *proposal, .devices = devices};
    running.trial = make_trial(*proposal, allowance->budget_seconds);
    journal_.begin(running.trial);
    if (allowance->hard_seconds > 0) ledger_.promise(running.trial.number, allowance->hard_seconds * devices);
    EvaluationRequest request;
    request.trial = running.trial.number;
    request.config = running.trial.config;
    request.budget_seconds = allowance->budget_seconds;
    request.hard_seconds = allowance->hard_seconds;
    // A setting that is slow may still be on the front.
    if (may_stop_early(running.trial.purpose) && !strategy_.options().wants_front())
      request.keep_going = make_keep_going(Race(history_));
    running.watch.restart();
    running_.emplace(lane, std::move(running));
    lanes.start(lane, std::move(request));
    return true;
  }

  // The lowest number that is free: a trial that was cut off is made again under its own.
  Trial make_trial(const Proposal& proposal, double budget_seconds) const {
    std::set<std::int64_t> taken;
    for (const Trial& trial : history_) taken.insert(trial.number);
    for (const auto& [lane, running] : running_) taken.insert(running.trial.number);
    Trial trial;
    while (taken.count(trial.number) != 0) ++trial.number;
    trial.config = proposal.config;
    trial.purpose = proposal.purpose;
    trial.set_back_knob = proposal.set_back_knob;
    trial.budget_seconds = budget_seconds;
    trial.started_at = unix_seconds();
    return trial;
  }

  void finish(LaneResult result) {
    auto entry = running_.extract(result.lane);
    Running& running = entry.mapped();
    ledger_.settle(running.trial.number);
    if (result.error && !error_) error_ = result.error;
    const double held_seconds = result.wall_seconds - result.measurement.waited_seconds;
    if (result.error || error_ || stopping()) {  // cut off: not a result, but its time is gone
      charge_interrupted(running, held_seconds);
      return;
    }
    Trial& trial = running.trial;
    trial.outcome = result.measurement.outcome;
    trial.samples = std::move(result.measurement.samples);
    trial.stopped_early = result.measurement.stopped_early;
    trial.message = std::move(result.measurement.message);
    trial.values = std::move(result.measurement.values);
    require_values(trial);
    trial.seconds = std::max(result.measurement.seconds, held_seconds);
    trial.gpu_seconds = trial.seconds * running.devices;
    set_figures(trial);
    journal_.end(trial);
    ledger_.charge(trial);
    history_.push_back(trial);
    sort_history();
    report(&trial, &running.proposal);
  }

  // A measurement without a figure that the study is about is none.
  void require_values(Trial& trial) const {
    if (!measured(trial)) return;
    for (const std::string& value : printed_values(strategy_.options().objectives)) {
      const auto found = trial.values.find(value);
      if (found != trial.values.end() && found->second > 0) continue;
      trial.outcome = Outcome::kCrash;
      trial.message = fmt::format("gave a throughput but no {} above 0, which is an objective", value);
      trial.samples.clear();
      return;
    }
  }

  void charge_interrupted(const Running& running, double seconds) {
    Trial trial = running.trial;
    trial.seconds = seconds;
    trial.gpu_seconds = seconds * running.devices;
    journal_.alive(trial, seconds);
    ledger_.charge(trial);
    interrupted_gpu_seconds_ += trial.gpu_seconds;
  }

  void tell_alive() {
    for (auto& [lane, running] : running_) {
      const double seconds = running.watch.seconds();
      if (seconds - running.told_alive < kAliveSeconds) continue;
      running.told_alive = seconds;
      running.trial.gpu_seconds = seconds * running.devices;
      journal_.alive(running.trial, seconds);
    }
    report(nullptr, nullptr);
  }

  void report(const Trial* ended, const Proposal* proposal) const {
    if (!progress_) return;
    StudyProgress progress;
    progress.ended = ended;
    progress.proposal = proposal;
    progress.done = static_cast<std::int64_t>(history_.size());
    progress.gpu_seconds = ledger_.spent();
    progress.running = running_.size();
    for (const Trial& trial : history_) {
      progress.failed += measured(trial) ? 0 : 1;
      progress.best_throughput = std::max(progress.best_throughput, trial.throughput);
    }
    progress_(progress);
  }

  void give_up_when_hopeless() const {
    const bool with_default = !history_.empty() && history_.front().purpose == Purpose::kBaseline;
    if (history_.size() < (with_default ? kHopelessDefault : kHopeless)) return;
    const Trial& first = history_.front();
    const auto crashed = [](const Trial& trial) { return trial.outcome == Outcome::kCrash; };
    // The same refusal whatever the setting: a script that is not there, an argument that it never takes.
    const auto refused_alike = [&](const Trial& trial) {
      return trial.outcome == first.outcome && (crashed(trial) || trial.outcome == Outcome::kInvalid) &&
             trial.message == first.message && !trial.message.empty();
    };
    const bool alike = std::all_of(history_.begin(), history_.end(), refused_alike);
    if (!alike && (history_.size() < kHopeless || !std::all_of(history_.begin(), history_.end(), crashed))) return;
    throw UserError(ExitCode::kRunFailed,
                    fmt::format("the first {} trials all {}, the last with: {}", history_.size(),
                                crashed(first) ? "crashed" : "were refused",
                                history_.back().message.empty() ? "no message" : history_.back().message),
                    "fix the program, then start a new study");
  }

  void sort_history() {
    std::sort(history_.begin(), history_.end(), [](const Trial& a, const Trial& b) { return a.number < b.number; });
  }

  const Strategy& strategy_;
  const std::vector<std::unique_ptr<Evaluator>>& evaluators_;
  Journal& journal_;
  const std::atomic<bool>* stop_;
  const std::function<void(const StudyProgress&)>& progress_;
  std::vector<Trial> history_;  // ended, by number
  double interrupted_gpu_seconds_;
  Ledger ledger_;
  std::map<std::size_t, Running> running_;  // by lane
  std::exception_ptr error_;
  bool over_ = false;           // the last proposal was none, or could not be paid
  bool out_of_budget_ = false;  // the latter
};

}  // namespace

StudyResult run_study(const Strategy& strategy, const std::vector<std::unique_ptr<Evaluator>>& lanes, Journal& journal,
                      const std::atomic<bool>* stop, const std::function<void(const StudyProgress&)>& progress) {
  return StudyRun(strategy, lanes, journal, stop, progress).run();
}

}  // namespace lockstep::tune
