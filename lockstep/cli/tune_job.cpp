#include "lockstep/cli/tune_job.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/cli/script_facts.h"
#include "lockstep/cli/session.h"
#include "lockstep/plan/verdict.h"
#include "lockstep/tune/evaluators/engine.h"
#include "lockstep/tune/evaluators/simulate.h"
#include "lockstep/tune/job/space.h"
#include "lockstep/tune/models/planner_prior.h"

namespace lockstep::cli {
namespace {

// The job of a study, read as the study read it.
struct StudiedJob {
  std::string file;  // absolute
  std::vector<std::string> overrides;
  std::string directory, backend, profile;
  spec::Job job;
};

tune::JobPricer::FindProfile profile_finder(const StudiedJob& studied) {
  return [name = studied.profile, backend = studied.backend](const spec::Job& job) {
    planner::Ranks ranks = planner::ranks_here(job);
    if (!backend.empty()) ranks.backend = backend;
    return planner::find_profile(job.cluster, job.precision, ranks, name);
  };
}

StudiedJob read_studied_job(const nlohmann::json& evaluator) {
  const JsonReader reader(evaluator, "study", "evaluator");
  StudiedJob studied;
  studied.directory = reader.text("directory", "");
  studied.file = (std::filesystem::path(studied.directory) / reader.text("job")).string();
  studied.backend = reader.text("backend", "");
  studied.profile = reader.text("profile", "");
  if (reader.has("overrides")) {
    for (const auto& word : reader.array("overrides")) studied.overrides.push_back(word.get<std::string>());
  }
  studied.job = spec::load_job(studied.file, studied.overrides);
  complete_model(studied.job);
  const auto profile = profile_finder(studied)(studied.job);
  studied.job = tune::job_to_tune(studied.job, profile ? &*profile : nullptr);
  const std::string then = reader.text("job_yaml", "");
  if (!then.empty() && then != spec::to_yaml(studied.job)) {
    throw bad_input(fmt::format("{} has changed since the study began", studied.file),
                    "undo the change, or start a new study");
  }
  return studied;
}

std::shared_ptr<const tune::JobPricer> make_pricer(const tune::Space& space, const StudiedJob& studied) {
  return std::make_shared<tune::JobPricer>(tune::JobKnobs(space, studied.job), profile_finder(studied));
}

std::unique_ptr<tune::Evaluator> make_engine(const tune::Space& space, const StudiedJob& studied,
                                             const std::filesystem::path& logs, std::vector<std::string> values) {
  tune::EngineOptions options;
  options.values = std::move(values);
  options.job_file = studied.file;
  options.overrides = studied.overrides;
  options.directory = studied.directory;
  options.backend = studied.backend;
  options.logs = logs;
  return tune::make_engine_evaluator(std::make_shared<tune::JobKnobs>(space, studied.job), options);
}

}  // namespace

TrialDevices devices_of_trial(const tune::StudySetup& setup) {
  const StudiedJob studied = read_studied_job(setup.evaluator);
  const spec::NodeGroup& group = studied.job.cluster.groups.front();
  TrialDevices devices;
  for (const spec::NodeGroup& each : studied.job.cluster.groups) devices.count += each.nodes * each.devices_per_node;
  devices.are_gpus = !group.device.is_cpu();
  const bool several = studied.job.cluster.groups.size() > 1 || group.nodes > 1;
  if (devices.are_gpus && several) {
    throw bad_input("a trial runs on one node, and the job's cluster has several",
                    fmt::format("tune it on one: cluster=1x{}x{}", group.devices_per_node, group.device.kind));
  }
  return devices;
}

TuneRequest make_job_request(const TuneFlags& flags, tune::StudySetup setup) {
  setup.evaluator["job"] = flags.job_file;
  setup.evaluator["overrides"] = flags.overrides;
  setup.evaluator["directory"] = std::filesystem::current_path().string();
  setup.evaluator["backend"] = flags.backend;
  setup.evaluator["profile"] = planner::named_profile(flags.profile);
  const StudiedJob studied = read_studied_job(setup.evaluator);
  // What `train` would refuse is refused in the same words, before any knob is looked at.
  plan::require_runnable(plan::run_of(studied.job, plan::layout_of(studied.job)));
  setup.evaluator["job_yaml"] = spec::to_yaml(studied.job);
  if (studied.job.cluster.groups.front().device.is_cpu()) setup.evaluator["device"] = "rank";
  setup.unit = studied.job.model.is_language_model() ? "tokens/s" : "samples/s";
  if (setup.evaluator["kind"] == "engine" && flags.on.empty())
    place(studied.job, flags.backend);  // says now what no trial could do
  return {tune::space_for_job(studied.job, studied.file, flags.space), std::move(setup)};
}

void add_job_trials(TrialSource& source, const tune::Space& space, const tune::StudySetup& setup, int lanes) {
  const StudiedJob studied = read_studied_job(setup.evaluator);
  const bool simulated = setup.evaluator.value("kind", "") == "simulate";
  const auto pricer = simulated ? make_pricer(space, studied) : nullptr;
  tune::SimulateOptions options;
  options.seed = setup.strategy.seed;
  for (int lane = 0; lane < lanes; ++lane) {
    source.lanes.push_back(
        simulated ? tune::make_simulate_evaluator(pricer, options)
                  : make_engine(space, studied, source.logs, tune::printed_values(setup.strategy.objectives)));
  }
}

std::unique_ptr<tune::Prior> make_job_prior(const tune::Space& space, const tune::StudySetup& setup) {
  return tune::make_planner_prior(make_pricer(space, read_studied_job(setup.evaluator)));
}

}  // namespace lockstep::cli
