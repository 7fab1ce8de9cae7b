// `lockstep simulate` with flags of failures: what a run goes through in weeks of them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/cli/goodput_question.h"
#include "lockstep/cli/simulate.h"
#include "lockstep/plan/plan.h"
#include "lockstep/report/goodput_text.h"
#include "lockstep/sim/failures/bursts.h"
#include "lockstep/sim/failures/comparison.h"
#include "lockstep/sim/failures/named.h"
#include "lockstep/telemetry/progress.h"

namespace lockstep::cli {
namespace {

constexpr auto kHeading = "Weeks of failures";
constexpr double kDay = 86400.0;
constexpr double kUsualDays = 30;

struct FailureOptions {
  std::string failures;
  int nodes = 0, trace_nodes = 0, spares = 0, samples = 200;
  double days = 0;  // 0: not given
  std::string when_short = "shrink", interval, stall, durable, detect = kDetect, memory_restart = kMemoryRestart,
              disk_restart = kDiskRestart, resize = kResize, memory_lost;
  double rate = 0;
  bool independent = false, fit = false, continued = false, disk_only = false, published = false;
};

std::vector<std::string> names_of_failures() {
  std::vector<std::string> names;
  for (const sim::NamedFailures& named : sim::named_failures()) names.emplace_back(named.name);
  return names;
}

sim::FaultTrace read_trace(const FailureOptions& options) {
  // A word that is no file is a name with a slip of the pen.
  std::error_code ignored;
  if (options.failures.find_first_of("./") == std::string::npos &&
      !std::filesystem::exists(options.failures, ignored)) {
    throw bad_input(fmt::format("--failures `{}` is neither a file nor a name", printable(options.failures)),
                    did_you_mean(options.failures, names_of_failures()));
  }
  sim::FaultTrace trace = sim::read_fault_trace(options.failures, options.trace_nodes);
  if (trace.faults.empty()) throw bad_input("has no fault in it", "give another trace", {printable(options.failures)});
  return trace;
}

std::unique_ptr<sim::FaultSource> source_of(const FailureOptions& options, double cluster_rate) {
  const auto of_rate = [&](double per_node_second) {
    sim::BurstModel bursts = sim::usual_bursts(per_node_second);
    if (!options.independent) return sim::faults_in_bursts(std::move(bursts));
    return sim::independent_faults(per_node_second, std::move(bursts.repair));
  };
  const sim::NamedFailures* named = sim::find_named_failures(options.failures);
  if (options.fit + options.continued + options.independent > 1)
    throw bad_input("--fit, --continue and --independent are three ways to read a trace", "give one of them");
  if ((options.fit || options.continued || options.trace_nodes > 0) && (named != nullptr || options.failures.empty()))
    throw bad_input("--fit, --continue and --trace-nodes are for a trace", "give its file with --failures");
  if (options.rate > 0) {
    if (!options.failures.empty())
      throw bad_input("--failures and --failure-rate both say how often nodes fail", "give one");
    return of_rate(options.rate / 1000.0 / kDay);
  }
  if (named != nullptr) return sim::faults_like(*named, options.independent);
  if (options.failures.empty()) {
    if (cluster_rate > 0) return of_rate(cluster_rate / 1000.0 / kDay);
    throw bad_input("nothing says how often nodes fail",
                    "give --failures FILE or --failure-rate, or a plan whose cluster has a rate");
  }
  sim::FaultTrace trace = read_trace(options);
  if (options.independent) {
    const double rate = static_cast<double>(trace.faults.size()) / (trace.seconds * trace.nodes);
    return sim::independent_faults(rate, sim::RepairTimes::observed(trace));
  }
  if (options.fit) return sim::faults_in_bursts(sim::fit_bursts(trace));
  if (options.continued) return sim::continued_faults(std::move(trace));
  return sim::replayed_faults(std::move(trace));
}

double seconds_or(const std::string& text, double fallback) { return text.empty() ? fallback : parse_seconds(text); }

// What the flags say about the policy and the samples.
void take_policy(const SimulateCommon& common, const FailureOptions& options, sim::GoodputQuestion& question) {
  sim::RunOnNodes& run = question.run;
  run.from_memory = !options.disk_only;
  run.when_short = options.when_short == "wait" ? sim::WhenShort::kWait : sim::WhenShort::kShrink;
  run.interval_seconds = seconds_or(options.interval, run.interval_seconds);
  run.stall_seconds = seconds_or(options.stall, run.stall_seconds);
  run.background_seconds = seconds_or(options.durable, run.background_seconds);
  run.detect_seconds = parse_seconds(options.detect);
  run.memory_restart_seconds = parse_seconds(options.memory_restart);
  run.memory_lost_seconds = seconds_or(options.memory_lost, run.memory_lost_seconds);
  run.disk_restart_seconds = parse_seconds(options.disk_restart);
  run.resize_seconds = parse_seconds(options.resize);
  question.samples = options.samples;
  question.seed = common.seed;
  question.threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

sim::GoodputQuestion question_of(const SimulateCommon& common, const FailureOptions& options, double& cluster_rate) {
  sim::GoodputQuestion question;
  const sim::NamedFailures* named = sim::find_named_failures(options.failures);
  if (!common.plan.empty()) {
    const plan::Plan plan = plan::read_plan(read_json_file(common.plan), common.plan);
    question = goodput_question(plan);
    cluster_rate = failures_per_1000_node_days(plan);
  } else if (named != nullptr) {
    question.run.nodes = named->nodes;
  } else if (options.nodes == 0) {
    throw bad_input("nothing says how many nodes the run has", "give a plan file or --nodes");
  }
  if (options.nodes > 0) {
    question.run.nodes = options.nodes;
    if (options.nodes % question.run.nodes_per_replica != 0) {
      throw bad_input(fmt::format("--nodes {} is no multiple of the {} nodes of a replica", options.nodes,
                                  question.run.nodes_per_replica),
                      "give a multiple");
    }
  }
  question.run.spares = options.spares;
  question.usd_per_hour += question.usd_per_node_hour * options.spares;
  const double usual_days = named != nullptr && common.plan.empty() ? named->days : kUsualDays;
  question.seconds = (options.days > 0 ? options.days : usual_days) * kDay;
  take_policy(common, options, question);
  return question;
}

int show_published(const SimulateCommon& common, const FailureOptions& options) {
  const bool own_question = !common.plan.empty() || !options.failures.empty() || options.rate > 0 ||
                            options.nodes > 0 || options.trace_nodes > 0 || options.spares > 0 || options.days > 0 ||
                            options.independent || options.fit || options.continued || options.disk_only;
  if (own_question) {
    throw bad_input("--published has its own runs, nodes, spares and days",
                    "leave out all but the policy, --samples and --seed");
  }
  sim::GoodputQuestion question;
  take_policy(common, options, question);
  const std::vector<sim::PublishedRun> runs = sim::published_runs(question);
  if (common.json) {
    fmt::print("{}\n", sim::to_json(runs).dump());
  } else {
    fmt::print("{}", report::to_text(runs, telemetry::detect_style(stdout)));
  }
  return 0;
}

int simulate_failures(const SimulateCommon& common, const FailureOptions& options) {
  if (options.published) return show_published(common, options);
  double cluster_rate = 0;
  const sim::GoodputQuestion question = question_of(common, options, cluster_rate);
  const auto source = source_of(options, cluster_rate);
  const sim::GoodputStudy study = sim::compare_choices(*source, question);
  if (common.json) {
    fmt::print("{}\n", sim::to_json(study).dump());
  } else {
    fmt::print("{}", report::to_text(study, telemetry::detect_style(stdout)));
  }
  return 0;
}

}  // namespace

SimulateQuestion add_failure_question(CLI::App& verb) {
  auto options = std::make_shared<FailureOptions>();
  verb.add_option(
          "--failures", options->failures,
          "A trace of faults (JSON), or `llama3`, `opt175b`, `infinitehbd`; without it the rate of the plan's cluster")
      ->group(kHeading);
  verb.add_option("--failure-rate", options->rate, "Faults per 1,000 node-days; they come in bursts as usual")
      ->check(CLI::PositiveNumber)
      ->group(kHeading);
  verb.add_option("--trace-nodes", options->trace_nodes, "Nodes that the trace was recorded on")
      ->check(CLI::PositiveNumber)
      ->group(kHeading);
  verb.add_flag("--independent", options->independent, "Nodes fail by themselves, not in bursts")->group(kHeading);
  verb.add_flag("--fit", options->fit, "Fit a model of bursts to the trace instead of replaying it")->group(kHeading);
  verb.add_flag("--continue", options->continued,
                "Go on from the end of the trace: what is down there is down at first")
      ->group(kHeading);
  verb.add_flag("--published", options->published,
                "Llama 3 405B and OPT-175B side by side: what was published, what this policy makes of it")
      ->group(kHeading);
  verb.add_option("--nodes", options->nodes, "Nodes of the run")->check(CLI::PositiveNumber)->group(kHeading);
  verb.add_option("--spares", options->spares, "Nodes beside them")->check(CLI::NonNegativeNumber)->group(kHeading);
  verb.add_option("--days", options->days, "How long (30, or as long as the named source)")
      ->check(CLI::PositiveNumber)
      ->group(kHeading);
  verb.add_option("--samples", options->samples, "How often")->check(CLI::Range(1, 1000000))->group(kHeading);
  verb.add_option("--when-short", options->when_short, "Of nodes: shrink, or wait for a repair")
      ->check(CLI::IsMember({"shrink", "wait"}))
      ->group(kHeading);
  verb.add_option("--checkpoint-every", options->interval, "Between two checkpoints (30m)")->group(kHeading);
  verb.add_option("--checkpoint-stall", options->stall, "Training stands still this long (2s)")->group(kHeading);
  verb.add_option("--checkpoint-durable", options->durable, "From the stall until it can be restored (60s)")
      ->group(kHeading);
  verb.add_flag("--disk-only", options->disk_only, "State comes back from checkpoints, never from memory of others")
      ->group(kHeading);
  verb.add_option("--detect", options->detect, "Until a lost node is noticed")->group(kHeading);
  verb.add_option("--memory-restart", options->memory_restart, "From then to training, state from memory")
      ->group(kHeading);
  verb.add_option("--memory-lost", options->memory_lost, "Work done again then, on average (half a step of the plan)")
      ->group(kHeading);
  verb.add_option("--disk-restart", options->disk_restart, "The same from a checkpoint")->group(kHeading);
  verb.add_option("--resize", options->resize, "Added where the number of replicas changes")->group(kHeading);
  return {.heading = kHeading,
          .answer = [options](const SimulateCommon& common) { return simulate_failures(common, *options); }};
}

}  // namespace lockstep::cli
