#include "lockstep/cli/tune_array.h"

#include <fmt/format.h>

#include <cstdlib>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/base/yaml.h"
#include "lockstep/cli/engine_library.h"
#include "lockstep/cli/signals.h"
#include "lockstep/cli/tune_job.h"
#include "lockstep/schedulers/slurm_array.h"
#include "lockstep/spec/job_reader.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kSchema = "lockstep.trial_array/1";
constexpr const char* kStudyFile = "study.json";

class SlurmLanes : public tune::LaneTasks {
 public:
  explicit SlurmLanes(schedulers::ArrayRequest request) : array_(std::move(request)) { array_.submit(); }

  State state(std::size_t lane) override {
    const schedulers::State state = array_.state(static_cast<std::int64_t>(lane));
    switch (state.phase) {
      case schedulers::Phase::kQueued:
        return {Phase::kWaiting, state.detail};
      case schedulers::Phase::kRunning:
        return {Phase::kRunning, state.detail};
      case schedulers::Phase::kCancelled:
        return {Phase::kCancelled, state.detail};
      case schedulers::Phase::kDone:
      case schedulers::Phase::kFailed:
        break;
    }
    return {Phase::kGone, state.detail};
  }

  void start_again(std::size_t lane) override { array_.submit_again(static_cast<std::int64_t>(lane)); }
  schedulers::SlurmArray& array() { return array_; }

 private:
  schedulers::SlurmArray array_;
};

class SlurmTrials : public TrialArray {
 public:
  SlurmTrials(const fs::path& folder, schedulers::ArrayRequest request)
      : owner_(std::make_unique<tune::RemoteOwner>(folder)), lanes_(std::make_shared<SlurmLanes>(std::move(request))) {}

  ~SlurmTrials() override {
    owner_.reset();
    try {
      lanes_->array().cancel();  // those that still wait, or do not listen
    } catch (const UserError& error) {
      fmt::print(stderr, "lockstep: the trials' job {} could not be cancelled: {}\n", lanes_->array().ids(),
                 error.what());
    }
  }

  const std::shared_ptr<SlurmLanes>& lanes() const { return lanes_; }

 private:
  std::unique_ptr<tune::RemoteOwner> owner_;
  std::shared_ptr<SlurmLanes> lanes_;
};

// The settings are read anew each time: they are about the cluster and not about the study.
schedulers::LaunchSettings settings_of(const JsonReader& evaluator) {
  if (evaluator.text("kind") == "engine") {
    const std::string file = (fs::path(evaluator.text("directory", "")) / evaluator.text("job")).string();
    const YamlNode tree = spec::load_job_tree(file, evaluator.texts("overrides"));
    return schedulers::read_settings(tree.find("launch"));
  }
  const std::string file = evaluator.text("launch", "");
  if (file.empty()) return {};
  const YamlNode tree = parse_yaml(read_file(file, 1u << 20), file);
  MapReader reader(tree, "");
  reader.require("launch");
  const YamlNode* const section = reader.find("launch");
  reader.finish();
  return schedulers::read_settings(section);
}

fs::path new_folder(const std::string& study) {
  fs::path folder = fs::absolute(telemetry::home_directory() / "studies" / study) /
                    fmt::format("array-{}", static_cast<std::int64_t>(1e3 * unix_seconds()));
  make_folders(folder);
  return folder;
}

schedulers::ArrayRequest array_request(const tune::StoredStudy& study, const JsonReader& evaluator,
                                       const fs::path& folder, std::size_t lanes) {
  schedulers::ArrayRequest request;
  request.name = "tune-" + study.setup.name;
  request.folder = folder;
  request.directory = evaluator.text("directory");
  request.tasks = static_cast<std::int64_t>(lanes);
  request.settings = settings_of(evaluator);
  if (request.settings.spares > 0) {
    throw bad_input("launch.spares: a lane of a study whose node is lost gets another one anyway", "leave it out");
  }
  if (evaluator.text("kind") == "engine") {
    const TrialDevices devices = devices_of_trial(study.setup);
    request.devices = devices.count;
    request.has_gpus = devices.are_gpus;
    if (request.settings.gpus_per_node > 0) {
      throw bad_input("launch.gpus_per_node is for foreign programs",
                      "the job's cluster says how many GPUs a node has");
    }
  } else if (request.settings.gpus_per_node > 0) {
    request.devices = request.settings.gpus_per_node;
    request.has_gpus = true;
  }
  std::string executable = request.settings.lockstep;
  if (executable.empty()) executable = request.settings.image.empty() ? executable_path().string() : "lockstep";
  request.words = {executable, "trial-worker", folder.string()};
  request.environment = request.settings.environment;
  request.environment["LOCKSTEP_HOME"] = fs::absolute(telemetry::home_directory()).string();
  return request;
}

tune::WorkerEnd end_was_asked() {
  if (stop_signals() == 0) return tune::WorkerEnd::kNo;
  return requeue_was_asked() ? tune::WorkerEnd::kAfterThisTrial : tune::WorkerEnd::kNow;
}

}  // namespace

std::unique_ptr<TrialArray> move_trials(const tune::StoredStudy& study, TrialSource& source, std::FILE* notes) {
  const JsonReader evaluator(study.setup.evaluator, "study", "evaluator");
  const std::string on = evaluator.text("on", "");
  if (on.empty()) return nullptr;
  if (on != "slurm") {
    throw bad_input(fmt::format("the study's trials run on {}, which this build does not know", printable(on)),
                    "resume it with the version that made it");
  }
  const fs::path folder = new_folder(study.id());
  const json document{{"schema", kSchema},
                      {"study", study.id()},
                      {"space", study.space.to_yaml()},
                      {"setup", tune::to_json(study.setup)}};
  write_file_atomically(folder / kStudyFile, document.dump());
  auto trials = std::make_unique<SlurmTrials>(folder, array_request(study, evaluator, folder, source.lanes.size()));
  for (std::size_t lane = 0; lane < source.lanes.size(); ++lane) {
    tune::RemoteOptions options;
    options.folder = folder;
    options.lane = lane;
    source.lanes[lane] =
        tune::make_remote_evaluator(std::move(source.lanes[lane]), study.space, options, trials->lanes());
  }
  fmt::print(notes, "trials run as Slurm job {}, {} at a time; logs: {}\n", trials->lanes()->array().ids(),
             source.lanes.size(), printable_path(folder));
  std::fflush(notes);
  return trials;
}

int run_trial_worker(const std::string& folder, std::size_t lane) {
  count_stop_signals(SecondSignal::kCounts);
  ::unsetenv("SLURM_PROCID");  // trials are programs of their own, not ranks of a Slurm step
  const json document = read_json_file(fs::path(folder) / kStudyFile);
  const JsonReader reader(document, kStudyFile);
  reader.require_text("schema", kSchema);
  const tune::Space space = tune::Space::parse(reader.text("space"), kStudyFile);
  tune::StudySetup setup = tune::study_setup_from_json(reader.object("setup").value(), kStudyFile);
  setup.evaluator.erase("on");
  setup.evaluator["prior"] = false;
  setup.evaluator.erase("transfer");
  const TrialSource source = make_trial_source(space, setup, reader.text("study"), 1, lane);
  tune::ServeOptions options;
  options.folder = folder;
  options.lane = lane;
  options.end_was_asked = end_was_asked;
  tune::serve_trials(*source.lanes.front(), space, options);
  return 0;
}

}  // namespace lockstep::cli
