#include "lockstep/cli/demo_chaos.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/demo_job.h"
#include "lockstep/cli/session.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/plan/plan.h"
#include "lockstep/planner/planner.h"
#include "lockstep/report/ledger.h"
#include "lockstep/telemetry/plot.h"
#include "lockstep/telemetry/progress.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::cli {
namespace {

// Small enough for two runs within a minute on two cores.
const std::vector<std::string> kSmaller = {"model.layers=2",     "model.hidden=96",           "steps=80",
                                           "evaluation.every=0", "optimizer.warmup_steps=10", "checkpoint.every=0"};

struct DemoRun {
  SessionResult outcome;
  std::vector<telemetry::Point> losses;
};

DemoRun run_once(const spec::Job& job, const Placement& placement, const plan::Plan& plan, const std::string& chaos,
                 std::FILE* out) {
  SessionOptions session;
  session.plan = plan;
  session.display = out;
  session.title = chaos.empty() ? "undisturbed" : "with a kill";
  session.chaos = chaos;
  DemoRun run{run_session(job, placement, session), {}};
  if (!run.outcome.error.empty()) fmt::print(stderr, "lockstep: {}\n", run.outcome.error);
  const auto store = telemetry::open_run_store(telemetry::home_directory());
  run.losses = store->series(run.outcome.run_id, std::string(telemetry::metric::kLoss));
  return run;
}

// The two curves over each other, and a line where the rank was killed.
std::string curves_of(const DemoRun& plain, const DemoRun& disturbed, std::int64_t kill_step, int rank) {
  const auto curve = [](const std::string& label, const std::vector<telemetry::Point>& points) {
    telemetry::Curve made{label, {}};
    for (const telemetry::Point& point : points) made.points.emplace_back(static_cast<double>(point.step), point.value);
    return made;
  };
  const auto [low, high] = std::ranges::minmax(plain.losses, {}, &telemetry::Point::value);
  telemetry::Curve kill{fmt::format("|: rank {} killed at step {}", rank, kill_step), {}};
  constexpr int kDots = 48;
  for (int i = 0; i <= kDots; ++i) {
    kill.points.emplace_back(static_cast<double>(kill_step), low.value + (high.value - low.value) * i / kDots);
  }
  const auto style = telemetry::detect_style(stdout);
  return telemetry::plot({curve("undisturbed", plain.losses), curve("with a kill", disturbed.losses), kill},
                         {.width = std::min(style.width, 100), .unicode = style.unicode});
}

bool is_exact(const SessionResult& outcome) {
  const auto ledger = telemetry::read_ledger(telemetry::home_directory(), outcome.run_id);
  return report::prove(ledger, outcome.result.value("steps", std::int64_t{0})).exact();
}

struct Comparison {
  SameLosses same;
  bool exact = false;                // the ledger of the disturbed run
  double first = 0.0, second = 0.0;  // final losses
  std::vector<double> recovery_seconds;
  std::int64_t lost_steps = 0;
  bool good() const { return same.all() && first == second && exact && !recovery_seconds.empty(); }
};

Comparison compare(const DemoRun& plain, const DemoRun& disturbed) {
  const nlohmann::json& result = disturbed.outcome.result;
  Comparison found{compare_losses(plain.losses, disturbed.losses), is_exact(disturbed.outcome)};
  found.first = plain.outcome.result.at("final_loss");
  found.second = result.at("final_loss");
  found.recovery_seconds = result.value("recovery_seconds", std::vector<double>{});
  found.lost_steps = result.value("lost_steps", std::int64_t{0});
  return found;
}

nlohmann::json to_json(const DemoRun& plain, const DemoRun& disturbed, const Comparison& found) {
  return {{"schema", "lockstep.demo-chaos/1"},
          {"runs", {plain.outcome.run_id, disturbed.outcome.run_id}},
          {"final_loss", {found.first, found.second}},
          {"identical", found.first == found.second},
          {"steps", found.same.steps},
          {"steps_identical", found.same.same},
          {"ledger_exact", found.exact},
          {"lost_steps", found.lost_steps},
          {"recovery_seconds", found.recovery_seconds}};
}

void show(const Comparison& found) {
  if (found.recovery_seconds.empty()) {
    fmt::print("  the rank was NOT replaced\n");
  } else {
    fmt::print("  recovered in   {:.2f} s, {} steps done again\n", found.recovery_seconds.front(), found.lost_steps);
  }
  fmt::print("  final loss     {:.17g} undisturbed\n                 {:.17g} with the kill: {}\n", found.first,
             found.second, found.first == found.second ? "identical to the last bit" : "NOT identical");
  fmt::print("  steps          {} of {} losses are identical to the last bit\n", found.same.same, found.same.steps);
  fmt::print("  samples        {}\n",
             found.exact ? "none lost, none twice (lockstep report last --ledger)" : "NOT exact");
  fmt::print("\nNext: lockstep train job.yaml --chaos \"kill rank=1 step=20\"    (docs/reference/chaos.md)\n");
}

}  // namespace

SameLosses compare_losses(const std::vector<telemetry::Point>& a, const std::vector<telemetry::Point>& b) {
  SameLosses same{static_cast<std::int64_t>(std::max(a.size(), b.size())), 0};
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    same.same += a[i].step == b[i].step && a[i].value == b[i].value ? 1 : 0;
  }
  return same;
}

int demo_chaos(const std::vector<std::string>& overrides, bool json) {
  std::vector<std::string> fields = kSmaller;
  fields.insert(fields.end(), overrides.begin(), overrides.end());
  const spec::Job job = spec::load_job(write_demo_job(), fields);
  const Placement placement = place(job, "");
  if (placement.world < 2) throw bad_input("the demo of chaos needs two ranks", "add cluster=1x4xcpu");
  const plan::Plan plan = planner::make_plan(job, nullptr);
  const std::int64_t step = std::max<std::int64_t>(1, job.steps / 2);
  const int rank = static_cast<int>(std::min<std::int64_t>(2, placement.world - 1));
  std::FILE* out = json ? stderr : stdout;

  fmt::print(out, "1. Train a small GPT on {} ranks, undisturbed\n", placement.world);
  std::fflush(out);
  const DemoRun plain = run_once(job, placement, plan, "", out);
  if (plain.outcome.exit_code != 0) return plain.outcome.exit_code;
  fmt::print(out, "\n2. The same again, and rank {} is killed (SIGKILL) before step {}\n", rank, step);
  std::fflush(out);
  const DemoRun disturbed = run_once(job, placement, plan, fmt::format("kill rank={} step={}", rank, step), out);
  if (disturbed.outcome.exit_code != 0) return disturbed.outcome.exit_code;

  const Comparison found = compare(plain, disturbed);
  if (json) {
    fmt::print("{}\n", to_json(plain, disturbed, found).dump());
  } else {
    fmt::print("\n3. Compare\n{}\n", curves_of(plain, disturbed, step, rank));
    show(found);
  }
  return found.good() ? 0 : 1;
}

}  // namespace lockstep::cli
