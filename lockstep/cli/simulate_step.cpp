// `lockstep simulate PLAN`: plays steps of a plan.
#include <fmt/format.h>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/cli/simulate.h"
#include "lockstep/planner/profile_source.h"
#include "lockstep/report/simulation_text.h"
#include "lockstep/sim/step/study.h"
#include "lockstep/telemetry/progress.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::cli {
namespace {

constexpr auto kHeading = "One step, or several";
constexpr std::int64_t kRecordedSteps = 20;  // unless --steps says otherwise: a diagnosis wants several

struct StepOptions {
  std::vector<std::string> injections, what_ifs;
  std::string profile, jitter;
  std::int64_t steps = 0;
  bool no_contention = false, record = false;
};

double parse_percent(const std::string& text) {
  const SourcePlace place{.file = "--jitter"};
  if (text.empty() || text.back() != '%') {
    throw bad_input(fmt::format("`{}` is no percentage", printable(text)), "write it as 2%", place);
  }
  const double share = parse_real(text.substr(0, text.size() - 1), place) / 100;
  if (!(share >= 0 && share <= 1)) throw bad_input("jitter is 0% to 100%", "write it as 2%", place);
  return share;
}

cost::Profile profile_of(const plan::Plan& plan, const std::string& name) {
  const planner::Ranks ranks = planner::ranks_here(plan.cluster, 0, "", plan.cluster.devices());
  return planner::require_profile(plan.cluster, plan.best.layout.precision, ranks, name);
}

std::string write_run(const sim::StepStudy& study) {
  const std::filesystem::path home = telemetry::home_directory();
  telemetry::check_home(home);
  auto store = telemetry::make_sqlite_run_store(telemetry::store_file(home));
  if (!store) store = telemetry::make_json_lines_run_store(home);
  return sim::record(study.question, study.simulation,
                     sim::record_request(study, study.plan.model.name + "-simulated", unix_seconds()), *store);
}

int simulate_step(const SimulateCommon& common, const StepOptions& options) {
  if (common.plan.empty()) {
    throw bad_input("nothing says what to simulate",
                    "give a plan file (lockstep plan ... --output plan.json), --failures, or --replay");
  }
  sim::StepStudyRequest request;
  request.plan = plan::read_plan(read_json_file(common.plan), common.plan);
  request.profile = profile_of(request.plan, options.profile);
  request.injections = options.injections;
  request.what_ifs = options.what_ifs;
  if (!options.jitter.empty()) request.jitter = parse_percent(options.jitter);
  request.contention = !options.no_contention;
  request.steps = options.steps > 0 ? options.steps : options.record ? kRecordedSteps : 1;
  request.seed = common.seed;
  const sim::StepStudy study = sim::study_step(request);
  const std::string run = options.record ? write_run(study) : "";
  if (common.json) {
    nlohmann::json document = sim::to_json(study);
    if (!run.empty()) {
      document["run"] = run;
      document["recorded_ranks"] = sim::ranks_to_record(study.question, study.simulation.symmetry);
    }
    fmt::print("{}\n", document.dump());
    return 0;
  }
  fmt::print("{}", report::to_text(study, telemetry::detect_style(stdout)));
  if (run.empty()) {
    fmt::print("\nNext: lockstep simulate {} --inject slow-rank=0,1.3x --record\n", printable(common.plan));
    return 0;
  }
  const auto recorded = sim::ranks_to_record(study.question, study.simulation.symmetry).size();
  fmt::print("\nRecorded as {} ({} of {} ranks)\nNext: lockstep diagnose {}\n", run, recorded,
             request.plan.best.layout.world(), run);
  return 0;
}

}  // namespace

SimulateQuestion add_step_question(CLI::App& verb) {
  auto options = std::make_shared<StepOptions>();
  verb.add_option("--steps", options->steps, "How many; 20 with --record, else one")
      ->check(CLI::Range(1, 1000000))
      ->group(kHeading);
  verb.add_option("--inject", options->injections,
                  "slow-rank=17,1.3x, slow-link=NODE,0.5x or slow-loader=3,50ms; more than once")
      ->group(kHeading);
  verb.add_option("--what-if", options->what_ifs,
                  "Another cluster: nic=800Gb/s, nics=8, nvlink=1.8TB/s, peak=2.25PFLOPS, memory=8TB/s, "
                  "storage=200GB/s; more than once")
      ->group(kHeading);
  verb.add_option("--jitter", options->jitter, "Every pass of every rank differs by so much (2%), drawn by the seed")
      ->group(kHeading);
  verb.add_flag("--no-contention", options->no_contention, "Every transfer as if it were alone on its links")
      ->group(kHeading);
  verb.add_option("--profile", options->profile, "Profile that prices it, a name or a file")->group(kHeading);
  verb.add_flag("--record", options->record, "Into the run store, for report, serve, export and diagnose")
      ->group(kHeading);
  return {.heading = kHeading,
          .answer = [options](const SimulateCommon& common) { return simulate_step(common, *options); }};
}

}  // namespace lockstep::cli
