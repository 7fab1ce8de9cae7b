// `lockstep simulate`: what a plan goes through in weeks of failures.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/plan/plan.h"
#include "lockstep/planner/money.h"
#include "lockstep/report/goodput_text.h"
#include "lockstep/sim/failures/bursts.h"
#include "lockstep/sim/failures/comparison.h"
#include "lockstep/telemetry/progress.h"

namespace lockstep::cli {
namespace {

constexpr double kDay = 86400.0;
// Grattafiori et al. 2024, Llama 3: 419 unexpected interruptions in 54 days on 2048 nodes.
constexpr double kLlama3PerNodeSecond = 419.0 / 54.0 / 2048.0 / kDay;

struct SimulateOptions {
  std::string plan, failures;
  int nodes = 0, trace_nodes = 0, spares = 0, samples = 200;
  double days = 30;
  std::uint64_t seed = 1;
  std::string when_short = "shrink", interval, stall, durable, detect = "1s", memory_restart = "2s",
              disk_restart = "300s", resize = "5s";
  double rate = 0;
  bool independent = false, fit = false, disk_only = false, json = false;
};

std::unique_ptr<sim::FaultSource> source_of(const SimulateOptions& options, double cluster_rate) {
  const auto of_rate = [&](double per_node_second) {
    sim::BurstModel bursts = sim::usual_bursts(per_node_second);
    if (!options.independent) return sim::faults_in_bursts(std::move(bursts));
    return sim::independent_faults(per_node_second, std::move(bursts.repair));
  };
  if (options.rate > 0) return of_rate(options.rate / 1000.0 / kDay);
  if (options.failures == "llama3") {  // what was counted are interruptions: a burst is one of them
    return of_rate(kLlama3PerNodeSecond * (options.independent ? 1.0 : sim::usual_bursts(1.0).mean_size()));
  }
  if (options.failures.empty()) {
    if (cluster_rate > 0) return of_rate(cluster_rate / 1000.0 / kDay);
    throw bad_input("nothing says how often nodes fail",
                    "give --failures FILE or --failure-rate, or a plan whose cluster has a rate");
  }
  sim::FaultTrace trace = sim::read_fault_trace(options.failures, options.trace_nodes);
  if (trace.faults.empty()) throw bad_input("has no fault in it", "give another trace", {options.failures});
  if (options.independent) {
    const double rate = static_cast<double>(trace.faults.size()) / (trace.seconds * trace.nodes);
    return sim::independent_faults(rate, sim::RepairTimes::observed(trace));
  }
  if (options.fit) return sim::faults_in_bursts(sim::fit_bursts(trace));
  return sim::replayed_faults(std::move(trace));
}

double seconds_or(const std::string& text, double fallback) { return text.empty() ? fallback : parse_seconds(text); }

// What the plan says about the run, where there is one.
double take_plan(const plan::Plan& plan, sim::GoodputQuestion& question) {
  const spec::NodeGroup& group = plan.cluster.groups.front();
  const std::int64_t per_node = std::max<std::int64_t>(1, group.devices_per_node);
  const plan::Layout& layout = plan.best.layout;
  question.run.nodes = static_cast<int>((layout.world() + per_node - 1) / per_node);
  const std::int64_t of_replica = layout.world() / std::max<std::int64_t>(1, layout.dp);
  question.run.nodes_per_replica = static_cast<int>(std::max<std::int64_t>(1, (of_replica + per_node - 1) / per_node));
  if (plan.best.checkpoint) {
    const plan::CheckpointCadence& cadence = *plan.best.checkpoint;
    question.run.interval_seconds = cadence.interval_seconds;
    question.run.stall_seconds = cadence.stall_seconds;
    question.run.background_seconds =
        std::max(0.0, cadence.worst_lost_seconds - cadence.interval_seconds - cadence.stall_seconds);
  }
  if (plan.best.prediction) question.run.memory_lost_seconds = 0.5 * plan.best.prediction->step_seconds.expected;
  question.usd_per_node_hour = group.price_per_device_hour_usd * static_cast<double>(per_node);
  question.usd_per_hour = planner::hourly_price(plan.cluster, layout.world()).usd;
  return group.failures_per_1000_node_days;
}

sim::GoodputQuestion question_of(const SimulateOptions& options, double& cluster_rate) {
  sim::GoodputQuestion question;
  question.run.from_memory = true;
  if (!options.plan.empty()) {
    cluster_rate = take_plan(plan::read_plan(read_json_file(options.plan), options.plan), question);
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
  sim::RunOnNodes& run = question.run;
  run.spares = options.spares;
  run.from_memory = !options.disk_only;
  run.when_short = options.when_short == "wait" ? sim::WhenShort::kWait : sim::WhenShort::kShrink;
  run.interval_seconds = seconds_or(options.interval, run.interval_seconds);
  run.stall_seconds = seconds_or(options.stall, run.stall_seconds);
  run.background_seconds = seconds_or(options.durable, run.background_seconds);
  run.detect_seconds = parse_seconds(options.detect);
  run.memory_restart_seconds = parse_seconds(options.memory_restart);
  run.disk_restart_seconds = parse_seconds(options.disk_restart);
  run.resize_seconds = parse_seconds(options.resize);
  question.usd_per_hour += question.usd_per_node_hour * options.spares;
  question.seconds = options.days * kDay;
  question.samples = options.samples;
  question.seed = options.seed;
  question.threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  return question;
}

int simulate(const SimulateOptions& options) {
  double cluster_rate = 0;
  const sim::GoodputQuestion question = question_of(options, cluster_rate);
  const auto source = source_of(options, cluster_rate);
  const sim::GoodputStudy study = sim::compare_choices(*source, question);
  if (options.json) {
    fmt::print("{}\n", sim::to_json(study).dump());
  } else {
    fmt::print("{}", report::to_text(study, telemetry::detect_style(stdout)));
  }
  return 0;
}

}  // namespace

void add_simulate(CLI::App& app, Outcome& outcome) {
  auto options = std::make_shared<SimulateOptions>();
  CLI::App* verb = app.add_subcommand(
      "simulate", "Plays weeks of failures: goodput, lost work, spares, and what each choice is worth");
  verb->add_option("plan", options->plan,
                   "Plan file (lockstep plan ... --output FILE): nodes, replicas, cadence, prices");
  verb->add_option("--failures", options->failures,
                   "A trace of faults (JSON), or `llama3`; without it the rate of the plan's cluster");
  verb->add_option("--failure-rate", options->rate, "Faults per 1,000 node-days; they come in bursts as usual")
      ->check(CLI::PositiveNumber);
  verb->add_option("--trace-nodes", options->trace_nodes, "Nodes that the trace was recorded on")
      ->check(CLI::PositiveNumber);
  verb->add_flag("--independent", options->independent, "Nodes fail by themselves, not in bursts");
  verb->add_flag("--fit", options->fit, "Fit a model of bursts to the trace instead of replaying it");
  verb->add_option("--nodes", options->nodes, "Nodes of the run")->check(CLI::PositiveNumber);
  verb->add_option("--spares", options->spares, "Nodes beside them")->check(CLI::NonNegativeNumber);
  verb->add_option("--days", options->days, "How long")->check(CLI::PositiveNumber);
  verb->add_option("--samples", options->samples, "How often")->check(CLI::Range(1, 1000000));
  verb->add_option("--seed", options->seed, "Of the random numbers");
  verb->add_option("--when-short", options->when_short, "Of nodes: shrink, or wait for a repair")
      ->check(CLI::IsMember({"shrink", "wait"}));
  verb->add_option("--checkpoint-every", options->interval, "Between two checkpoints (30m)");
  verb->add_option("--checkpoint-stall", options->stall, "Training stands still this long (2s)");
  verb->add_option("--checkpoint-durable", options->durable, "From the stall until it can be restored (60s)");
  verb->add_flag("--disk-only", options->disk_only, "State comes back from checkpoints, never from memory of others");
  verb->add_option("--detect", options->detect, "Until a lost node is noticed");
  verb->add_option("--memory-restart", options->memory_restart, "From then to training, state from memory");
  verb->add_option("--disk-restart", options->disk_restart, "The same from a checkpoint");
  verb->add_option("--resize", options->resize, "Added where the number of replicas changes");
  verb->add_flag("--json", options->json, "JSON on stdout (lockstep.goodput/1)");
  set_examples(*verb,
               "  lockstep plan --model llama2-13b --cluster 4x8xH100 --tokens 300B --output plan.json\n"
               "  lockstep simulate plan.json --days 30\n"
               "  lockstep simulate --failures llama3 --nodes 2048 --days 54 --spares 16\n"
               "  lockstep simulate --failures faults.json --trace-nodes 400 --nodes 1250 --days 90 --json");
  verb->callback([options, &outcome] {
    outcome.json = options->json;
    outcome.exit_code = simulate(*options);
  });
}

}  // namespace lockstep::cli
