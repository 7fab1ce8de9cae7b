#include "lockstep/cli/validation_session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <optional>

#include "lockstep/base/clock.h"
#include "lockstep/base/counted.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/processor_share.h"
#include "lockstep/base/units.h"
#include "lockstep/cli/calibrate.h"
#include "lockstep/cli/proxy_data.h"
#include "lockstep/cli/session.h"
#include "lockstep/cli/signals.h"
#include "lockstep/cost/engine_memory.h"
#include "lockstep/plan/run.h"
#include "lockstep/planner/planner.h"
#include "lockstep/report/run_facts.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::cli {
namespace {

using planner::Proxy;
using planner::StepPhase;

double load_average() {
  double load = 0;
  return getloadavg(&load, 1) == 1 ? load : 0;
}

[[noreturn]] void throw_stopped() {
  throw UserError(ExitCode::kInterrupted, "stopped; nothing was written", "what ran is in `lockstep report`");
}

// What the ranks had of the cores while they trained, step by step, as seen from the agent.
class Shares {
 public:
  void begin(const std::string& run) { folder_ = telemetry::run_folder(telemetry::home_directory(), run); }

  void note(std::int64_t step) {
    if (ranks_.empty()) find_ranks();
    std::vector<ThreadTimes> now;
    now.reserve(ranks_.size());
    for (const std::int64_t rank : ranks_) {
      now.push_back(thread_times_of(rank));
      if (now.back().empty()) return;  // it has ended: the reading before is the last one
    }
    seen_[step] = std::move(now);
  }

  // From the end of step `after` on. 1 where nothing was seen.
  double share(std::int64_t after) const {
    const auto first = seen_.lower_bound(after);
    if (first == seen_.end()) return 1;
    const std::vector<ThreadTimes>& last = seen_.rbegin()->second;
    ProcessorTime sum;
    for (std::size_t rank = 0; rank < last.size(); ++rank) sum += busiest_between(first->second[rank], last[rank]);
    return share_between({}, sum);
  }

 private:
  // Without such a file the only rank is this process.
  void find_ranks() {
    const std::filesystem::path file = folder_ / "ranks.json";
    if (!std::filesystem::exists(file)) {
      ranks_ = {getpid()};
      return;
    }
    read_json_file(file.string()).at("pids").get_to(ranks_);
  }

  std::filesystem::path folder_;
  std::vector<std::int64_t> ranks_;
  std::map<std::int64_t, std::vector<ThreadTimes>> seen_;  // by step, of every rank
};

// One round measures, predicts and trains every proxy; figures of a round are of one moment.
class Rounds {
 public:
  Rounds(const ValidationPlan& plan, const ValidateFlags& flags, std::FILE* display)
      : plan_(plan), flags_(flags), display_(display) {
    const std::size_t runs = plan.choice.proxies.size() * static_cast<std::size_t>(flags.limits.repetitions);
    jobs_.reserve(plan.choice.proxies.size());
    for (const Proxy& proxy : plan.choice.proxies) {
      jobs_.push_back(proxy.job);
      write_proxy_data(jobs_.back(), data_.path() / proxy.job.name);
      result_.proxies.push_back({proxy, {}});
    }
    all_ = runs;
  }

  report::Validation run() {
    result_.job = plan_.job;
    result_.target = plan_.target;
    result_.unchecked = plan_.choice.unchecked;
    result_.made_at = unix_seconds();
    for (std::int64_t round = 0; round < flags_.limits.repetitions; ++round) {
      if (flags_.calibrating == Calibrating::kEach) profiles_.clear();
      for (std::size_t i = 0; i < jobs_.size(); ++i) run_proxy(i, round);
    }
    describe();
    return std::move(result_);
  }

 private:
  void say(const std::string& line) {
    if (display_ == nullptr) return;
    fmt::print(display_, "{}\n", line);
    std::fflush(display_);
  }

  // The most that a layout of the proxies cuts a layer into.
  std::int64_t cuts() const {
    std::int64_t most = 1;
    for (const Proxy& proxy : plan_.choice.proxies) most = std::max(most, proxy.layout.tp);
    return most;
  }

  cost::Profile measure(const spec::Job& job, const Placement& placement) {
    say(fmt::format("measuring {} x {} over {} in the shapes of {}, load {:.1f}", counted(placement.world, "rank"),
                    counted(placement.threads, "thread"), placement.backend, job.model.name, load_average()));
    spec::Job timed = job;
    timed.model = planner::timed_relative(job.model);
    timed.layout = spec::LayoutRequest{};
    timed.layout->axes["tp"] = cuts();
    return calibrate(timed, placement, {.shapes_only = true}, nullptr);
  }

  cost::Profile gpu_profile(const spec::Job& job, const Placement& placement) {
    const auto known = planner::find_profile(job.cluster, job.precision, placement, flags_.profile);
    if (placement.world > 1 || !flags_.profile.empty() || flags_.calibrating == Calibrating::kNever) return *known;
    say("measuring one GPU, about a minute");
    return calibrate_gpu(true, nullptr);
  }

  const cost::Profile& profile_for(const spec::Job& job, const Placement& placement) {
    const auto found = profiles_.find(placement.world);
    if (found != profiles_.end()) return found->second;
    cost::Profile profile;
    if (!job.cluster.is_cpu()) {
      profile = gpu_profile(job, placement);
    } else if (flags_.calibrating == Calibrating::kNever || !flags_.profile.empty()) {
      profile = planner::require_profile(job.cluster, job.precision, placement, flags_.profile);
    } else {
      profile = measure(job, placement);
    }
    return profiles_.insert_or_assign(placement.world, std::move(profile)).first->second;
  }

  void run_proxy(std::size_t index, std::int64_t round) {
    spec::Job& job = jobs_[index];
    const Proxy& proxy = plan_.choice.proxies[index];
    job.seed = flags_.seed + round;
    const Placement placement = place(job, flags_.backend);
    placement_ = placement;
    const cost::Profile& profile = profile_for(job, placement);
    last_profile_ = profile;
    if (stop_signals() > 0) throw_stopped();
    const plan::Plan predicted = planner::make_plan(job, &profile);
    const double load = load_average();
    Shares shares;
    const SessionResult outcome = train(job, placement, predicted, shares);
    report::ProxyRun run = compare(job, predicted, outcome, shares);
    run.load = load;
    ++done_;
    say(fmt::format("[{}/{}] proxy-{}, {}: predicted {}, measured {} a step ({:+.1f}%), share {:.0f}%", done_, all_,
                    index + 1, plan::to_string(proxy.layout),
                    format_seconds(predicted.best.prediction->step_seconds.expected),
                    format_seconds(run.measured.total()), 100 * std::expm1(run.log_ratio()), 100 * run.share));
    result_.proxies[index].runs.push_back(std::move(run));
  }

  static SessionResult train(const spec::Job& job, const Placement& placement, const plan::Plan& predicted,
                             Shares& shares) {
    SessionOptions session;
    session.display = nullptr;
    session.title = job.name;
    session.plan = predicted;
    session.on_run = [&](const std::string& run) { shares.begin(run); };
    if (job.cluster.is_cpu()) {
      session.on_step = [&](const nlohmann::json& step) { shares.note(step.value("step", std::int64_t{0})); };
    }
    SessionResult outcome = run_session(job, placement, session);
    if (outcome.exit_code == static_cast<int>(ExitCode::kInterrupted) || stop_signals() > 0) throw_stopped();
    if (outcome.exit_code == 0 && !outcome.result.is_null()) return outcome;
    throw UserError(outcome.exit_code == 0 ? ExitCode::kRunFailed : static_cast<ExitCode>(outcome.exit_code),
                    fmt::format("{} failed: {}", job.name, outcome.error), "`lockstep report last` shows it");
  }

  static report::ProxyRun compare(const spec::Job& job, const plan::Plan& predicted, const SessionResult& outcome,
                                  const Shares& shares) {
    const auto store = telemetry::open_run_store(telemetry::home_directory());
    const report::RunFacts facts = report::read_run_facts(*store, outcome.run_id);
    const report::PhaseSeconds mean = facts.mean_phases();
    planner::StepParts parts;
    parts[StepPhase::kData] = mean.data;
    parts[StepPhase::kCompute] = mean.compute;
    parts[StepPhase::kComm] = mean.comm;
    parts[StepPhase::kOptimizer] = mean.optimizer;
    parts[StepPhase::kCheckpoint] = mean.checkpoint;
    parts[StepPhase::kHost] = mean.host;
    const double step = parts.total();
    if (step <= 0) {
      throw UserError(ExitCode::kRunFailed, fmt::format("run {} recorded no steps", outcome.run_id),
                      "`lockstep doctor` checks the run store");
    }
    report::ProxyRun run;
    run.run = outcome.run_id;
    run.seed = job.seed;
    run.predicted = predicted.best;
    run.predicted_bytes = cost::engine_memory(plan::run_of(job, predicted.best), 0).total();
    run.share = shares.share(facts.counted_from - 1);
    run.measured = planner::scaled_to(parts, run.share * step);
    run.measured_bytes = outcome.result.value("peak_allocated_bytes", 0.0);
    return run;
  }

  void describe() {
    const spec::Device& device = plan_.machine.node.device;
    const cost::Provenance& measured = last_profile_.provenance;
    result_.machine = {.kind = device.kind,
                       .hardware = measured.hardware,
                       .software = measured.software,
                       .backend = placement_.backend,
                       .ranks = placement_.world,
                       .threads = placement_.threads,
                       .cores = measured.cores};
    result_.profile = last_profile_.identity();
    result_.same_device = true;
    for (const spec::NodeGroup& group : plan_.target.cluster.groups) {
      result_.same_device = result_.same_device && group.device.kind == device.kind;
    }
    if (!result_.target.best.prediction) {
      const auto own = profiles_.find(result_.target.best.layout.world());
      LOCKSTEP_ASSERT(own != profiles_.end(), "plan_validation() made sure of it");
      result_.target = planner::make_plan(plan_.job, &own->second);
    }
  }

  const ValidationPlan& plan_;
  const ValidateFlags& flags_;
  std::FILE* display_;
  const TemporaryFolder data_{"lockstep-proxies"};
  std::vector<spec::Job> jobs_;
  std::map<std::int64_t, cost::Profile> profiles_;  // by ranks, of the round
  cost::Profile last_profile_;
  Placement placement_;
  report::Validation result_;
  std::size_t done_ = 0, all_ = 0;
};

}  // namespace

report::Validation run_validation(const ValidationPlan& plan, const ValidateFlags& flags, std::FILE* display) {
  return Rounds(plan, flags, display).run();
}

}  // namespace lockstep::cli
