// `lockstep calibrate`: measures this machine and keeps a Profile that prices plans.
#include <fmt/format.h>

#include "lockstep/base/counted.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/cli/calibrate.h"
#include "lockstep/cli/demo_job.h"
#include "lockstep/cli/signals.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/cost/profile/constants_from_tables.h"
#include "lockstep/spec/backends.h"

namespace lockstep::cli {
namespace {

constexpr double kBusySpread = 0.05;  // of the steps of one model; alone on a GPU they vary by 1 to 2%

struct CalibrateOptions {
  std::string job_file, output, backend, tables, device = "cpu";
  std::vector<std::string> overrides;
  int ranks = 0;
  bool quick = false, fused = false, json = false;
};

// The kind of device in specs/clusters that the driver's name for it contains; the longest, for "H100" is in
// "H100 PCIe" too. Empty: none.
std::string kind_of(const std::string& driver_name) {
  std::string kind;
  for (const std::string& known : spec::device_kind_names()) {
    if (driver_name.find(known) != std::string::npos && known.size() > kind.size()) kind = known;
  }
  return kind;
}

// What the planner reads: constants relative to the datasheet of the kind.
void add_constants(cost::Profile& profile) {
  const std::string kind = kind_of(profile.provenance.hardware);
  if (kind.empty()) return;
  const spec::NodeGroup node = spec::load_cluster(kind).groups.front();
  if (!profile.matmuls.empty()) profile.fitted = cost::fitted_from_tables(profile, node);
  if (profile.dense) profile.dense = cost::fit_fused(std::move(*profile.dense), node.device);
}

int finish_calibration(const CalibrateOptions& options, const cost::Profile& profile, const std::string& path,
                       const std::string& next) {
  make_folders(std::filesystem::absolute(path).parent_path());
  cost::save_profile(profile, path);
  if (options.json) {
    fmt::print(
        "{}\n",
        nlohmann::json{{"schema", "lockstep.calibrate/1"}, {"path", path}, {"profile", cost::to_json(profile)}}.dump());
    return 0;
  }
  show_profile(stdout, profile);
  fmt::print("\nsaved to {}\nNext: {}\n", path, next);
  return 0;
}

std::string next_plan(const cost::Profile& profile, const std::string& path) {
  const std::string kind = profile.fitted ? profile.fitted->hardware : "KIND";
  return fmt::format("lockstep plan --model llama2-7b --cluster 1x8x{} --profile {}", kind, path);
}

// Formulas change; what was measured does not.
int fit_again(const CalibrateOptions& options) {
  cost::Profile profile = cost::find_profile(options.tables);
  profile.fitted.reset();
  add_constants(profile);
  if (!profile.fitted) {
    throw bad_input(fmt::format("no kind of GPU is called {}", printable(profile.provenance.hardware)),
                    "constants are relative to a datasheet of specs/clusters; CPU profiles need none");
  }
  const std::string path = options.output.empty() ? options.tables : options.output;
  return finish_calibration(options, profile, path, next_plan(profile, path));
}

cost::Profile measure_gpu(const CalibrationRequest& request, std::FILE* display) {
  const spec::Job job = spec::load_job(write_demo_job(), {"cluster=1x1xcpu"});
  return calibrate(job, place(job, "local"), request, display);
}

int calibrate_cuda(const CalibrateOptions& options) {
  if (options.ranks > 1) throw bad_input("--device cuda measures one GPU", "omit --ranks");
  if (!options.job_file.empty()) throw bad_input("--device cuda does not measure the shapes of a job", "omit the job");
  std::FILE* display = options.json ? stderr : stdout;
  fmt::print(display, "measuring one GPU ({})\n", options.quick ? "quick: about a minute" : "some minutes");
  std::fflush(display);
  cost::Profile profile = measure_gpu({.quick = options.quick, .cuda = true, .fused = options.fused}, display);
  if (options.fused) {
    if (!profile.dense) throw environment_error("this build has no fused step to measure", "build with `make cuda`");
    cost::Profile tables = cost::find_profile(options.tables);
    tables.dense = std::move(profile.dense);
    profile = std::move(tables);
  }
  add_constants(profile);
  const std::string path = options.output.empty() ? planner::device_profile_path("cuda").string() : options.output;
  return finish_calibration(options, profile, path, next_plan(profile, path));
}

int calibrate_verb(const CalibrateOptions& options) {
  if (options.fused && (options.device != "cuda" || options.tables.empty())) {
    throw bad_input("--fused measures the one-GPU step of an existing profile again",
                    "give --device cuda and --tables FILE, the profile whose tables stay");
  }
  if (!options.tables.empty() && !options.fused) return fit_again(options);
  if (options.device == "cuda") return calibrate_cuda(options);
  std::vector<std::string> overrides = options.overrides;
  if (options.ranks > 0) overrides.push_back(fmt::format("cluster=1x{}xcpu", options.ranks));
  const std::string job_file = options.job_file.empty() ? write_demo_job() : options.job_file;
  const spec::Job job = spec::load_job(job_file, overrides);
  if (job.model.is_scripted()) {
    throw bad_input(fmt::format("calibrate measures the operators of built-in models; {} is measured by itself",
                                spec::origin_of(job.model)),
                    "leave the job out: `lockstep calibrate --ranks N`");
  }
  const Placement placement = place(job, options.backend);
  std::FILE* display = options.json ? stderr : stdout;
  fmt::print(display, "measuring {} x {} over {} ({})\n", counted(placement.world, "rank"),
             counted(placement.threads, "thread"), placement.backend,
             options.quick ? "quick: a few seconds" : "some minutes");
  std::fflush(display);
  const cost::Profile profile = calibrate(job, placement, {.quick = options.quick}, display);
  const std::string path =
      options.output.empty() ? planner::profile_path(placement, job.precision).string() : options.output;
  return finish_calibration(
      options, profile, path,
      fmt::format("lockstep train {}{}{} --dry-run", job_file, overrides.empty() ? "" : " ", join(overrides, " ")));
}

}  // namespace

cost::Profile calibrate(const spec::Job& job, const Placement& placement, const CalibrationRequest& request,
                        std::FILE* display) {
  if (placement.launched) {
    throw bad_input("calibration starts its ranks itself but was started by " + placement.launched->source,
                    "run it by itself on one node: `lockstep calibrate --ranks N`");
  }
  SessionOptions session;
  session.verb = request.shapes_only ? "calibrate_shapes" : "calibrate";
  session.record = false;
  session.display = display;
  session.verb_options.quick = request.quick;
  session.verb_options.cuda = request.cuda;
  session.verb_options.fused = request.fused;
  const SessionResult outcome = run_session(job, placement, session);
  const bool stopped = outcome.exit_code == 130 || stop_signals() > 0;
  if (outcome.exit_code != 0 || stopped || outcome.result.is_null()) {
    const bool lacks = outcome.exit_code == static_cast<int>(ExitCode::kEnvironment);
    const ExitCode code = stopped ? ExitCode::kInterrupted : lacks ? ExitCode::kEnvironment : ExitCode::kRunFailed;
    throw UserError(code, "calibration failed: " + (outcome.error.empty() ? "stopped" : outcome.error),
                    lacks ? "" : "run `lockstep doctor`");
  }
  return cost::read_profile(outcome.result.at("profile"), "calibration");
}

cost::Profile calibrate_gpu(bool quick, std::FILE* display) {
  cost::Profile profile = measure_gpu({.quick = quick, .cuda = true}, display);
  add_constants(profile);
  return profile;
}

void show_profile(std::FILE* out, const cost::Profile& profile) {
  fmt::print(out, "  hardware    {}\n  software    {}\n", profile.provenance.hardware, profile.provenance.software);
  fmt::print(out, "  products    up to {:.1f} GFLOP/s per rank over {} shapes\n", profile.peak_flops / 1e9,
             profile.matmuls.size());
  fmt::print(out, "  memory      {:.1f} GB/s per rank\n", profile.memory_bytes_per_second / 1e9);
  for (const cost::CollectivePoint& point : profile.collectives) {
    if (&point != &profile.collectives.back() || point.op != cost::CollectiveOp::kAllReduce) continue;
    fmt::print(out, "  all-reduce  {} in {} over {} ranks\n", format_bytes(static_cast<double>(point.bytes)),
               format_seconds(point.seconds), point.ranks);
  }
  for (const cost::CalibrationCheck& check : profile.checks) {
    fmt::print(out, "  check       {}: predicted {}, measured {} ({:+.1f}%)\n", check.name,
               format_seconds(check.predicted_seconds), format_seconds(check.measured_seconds),
               100.0 * (check.measured_seconds / check.predicted_seconds - 1.0));
  }
  if (profile.dense) {
    fmt::print(out, "  fused step  {} steps measured: products at {:.0f}% of the peak, predictions off by {:.0f}%\n",
               profile.dense->points.size(), 100.0 * profile.dense->constants.forward_efficiency,
               100.0 * profile.dense->time_sigma);
    for (const cost::FusedPoint& point : profile.dense->points) {
      if (point.spread < kBusySpread) continue;
      fmt::print(out, "  note        {} varied by {:.0f}%: was the GPU busy with something else? Measure again\n",
                 point.name(), 100.0 * point.spread);
    }
  }
  if (profile.fitted) {
    fmt::print(out, "  constants   for {}: products at {:.0f}% of the peak, predictions off by {:.0f}% (one sigma)\n",
               profile.fitted->hardware, 100.0 * profile.fitted->constants.gemm_efficiency,
               100.0 * profile.fitted->residuals.time);
  }
}

void add_calibrate(CLI::App& app, Outcome& outcome) {
  auto options = std::make_shared<CalibrateOptions>();
  CLI::App* verb = app.add_subcommand("calibrate", "Measures this machine; plans are priced from the result");
  verb->add_option("job", options->job_file, "Measure the shapes of this job too (default: the demo's)");
  verb->add_option("overrides", options->overrides, "key=value for any field of the job");
  verb->add_option("--device", options->device, "What to measure: the CPU ranks of a job, or one GPU")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  verb->add_option("--ranks", options->ranks, "Ranks that measure at the same time (default: the job's)");
  verb->add_option("--backend", options->backend, "Communicator")->check(CLI::IsMember(spec::backend_names()));
  verb->add_option("--tables", options->tables,
                   "Measure nothing: fit the constants again from the tables of this GPU profile");
  verb->add_flag("--fused", options->fused,
                 "With --device cuda and --tables: measure only the fused one-GPU step again");
  verb->add_option("--output", options->output, "Profile file (default: under the run store, found by `train`)");
  verb->add_flag("--quick", options->quick, "A few seconds instead of a minute");
  verb->add_flag("--json", options->json, "JSON on stdout (lockstep.calibrate/1)");
  set_examples(*verb,
               "  lockstep calibrate --quick\n"
               "  lockstep calibrate specs/jobs/mnist-cnn.yaml\n"
               "  lockstep calibrate --ranks 2 --output here.json\n"
               "  lockstep calibrate --device cuda --output H200.json\n"
               "  lockstep calibrate --device cuda --fused --tables H200.json");
  verb->callback([options, &outcome] {
    outcome.json = options->json;
    outcome.exit_code = calibrate_verb(*options);
  });
}

}  // namespace lockstep::cli
