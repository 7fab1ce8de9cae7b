// `lockstep demo`: measures this machine, predicts, trains a byte-level GPT for real, and compares.
#include <fmt/format.h>

#include <cmath>

#include "lockstep/base/file.h"
#include "lockstep/base/units.h"
#include "lockstep/cli/calibrate.h"
#include "lockstep/cli/demo_chaos.h"
#include "lockstep/cli/demo_job.h"
#include "lockstep/cli/show.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/planner/planner.h"
#include "lockstep/report/run_report.h"
#include "lockstep/telemetry/progress.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::cli {
namespace {

struct DemoOptions {
  std::vector<std::string> overrides;
  bool json = false, chaos = false;
};

void show_curve(const std::string& run_id) {
  const auto store = telemetry::open_run_store(telemetry::home_directory());
  fmt::print("\n{}", report::to_text(report::make_run_report(*store, run_id), telemetry::detect_style(stdout)));
}

int demo(const DemoOptions& options) {
  const spec::Job job = spec::load_job(write_demo_job(), options.overrides);
  const Placement placement = place(job, "");
  std::FILE* out = options.json ? stderr : stdout;

  fmt::print(out, "1. Measure: {} ranks on this machine\n", placement.world);
  std::fflush(out);
  const cost::Profile profile = calibrate(job, placement, {.quick = true}, out);
  make_folders(planner::profile_path(placement, job.precision).parent_path());
  cost::save_profile(profile, planner::profile_path(placement, job.precision).string());
  show_profile(out, profile);

  fmt::print(out, "\n2. Plan\n");
  const plan::Plan plan = planner::make_plan(job, &profile);
  show_plan(out, job, plan, placement);

  fmt::print(out, "3. Train on {}\n", job.data.path);
  std::fflush(out);
  SessionOptions session;
  session.plan = plan;
  session.display = out;
  session.title = "demo";
  const SessionResult outcome = run_session(job, placement, session);
  if (!outcome.error.empty()) fmt::print(stderr, "lockstep: {}\n", outcome.error);
  if (options.json) {
    const nlohmann::json failed = {{"schema", "lockstep.run/1"}, {"status", "failed"}, {"error", outcome.error}};
    fmt::print("{}\n", (outcome.result.is_null() ? failed : outcome.result).dump());
    return outcome.exit_code;
  }
  if (outcome.result.is_null()) return outcome.exit_code;
  if (outcome.exit_code == 0) {
    fmt::print("\n4. Look\n");
    show_curve(outcome.run_id);
  }
  show_run_summary(stdout, outcome.result);
  fmt::print("\nNext: lockstep train specs/jobs/mnist-cnn.yaml    (`make data-mnist` fetches the data)\n");
  return outcome.exit_code;
}

}  // namespace

void add_demo(CLI::App& app, Outcome& outcome) {
  auto options = std::make_shared<DemoOptions>();
  CLI::App* verb = app.add_subcommand("demo", "Measures, predicts and trains a small GPT on 4 ranks of this machine");
  verb->add_option("overrides", options->overrides, "key=value for any field of specs/jobs/gpt-bytes-demo.yaml");
  verb->add_flag("--chaos", options->chaos,
                 "Train a smaller one twice, the second time with a rank that is killed, and compare");
  verb->add_flag("--json", options->json, "Last line of stdout is JSON (lockstep.run/1, lockstep.demo-chaos/1)");
  set_examples(*verb, "  lockstep demo\n  lockstep demo --chaos\n  lockstep demo steps=50 cluster=1x2xcpu");
  verb->callback([options, &outcome] {
    outcome.json = options->json;
    outcome.exit_code = options->chaos ? demo_chaos(options->overrides, options->json) : demo(*options);
  });
}

}  // namespace lockstep::cli
