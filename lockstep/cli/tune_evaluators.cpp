#include "lockstep/cli/tune_evaluators.h"

#include <fmt/format.h>

#include <cstdlib>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/tune_job.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/tune/evaluators/command.h"
#include "lockstep/tune/evaluators/process.h"
#include "lockstep/tune/evaluators/worker.h"
#include "lockstep/tune/transfer/earlier.h"
#include "lockstep/tune/transfer/prior.h"

namespace lockstep::cli {
namespace {

// By CUDA_VISIBLE_DEVICES, else the device files of the driver.
std::vector<std::string> visible_devices() {
  const char* listed = std::getenv("CUDA_VISIBLE_DEVICES");
  std::vector<std::string> devices;
  if (listed != nullptr) {
    for (const std::string& entry : split(listed, ','))
      if (!trim(entry).empty()) devices.emplace_back(trim(entry));
    return devices;
  }
  while (std::filesystem::exists(fmt::format("/dev/nvidia{}", devices.size()))) {
    devices.push_back(std::to_string(devices.size()));
  }
  return devices;
}

std::map<std::string, std::string> lane_environment(std::size_t lane, const std::string& devices,
                                                    const std::string& study_id) {
  std::map<std::string, std::string> environment{{"LOCKSTEP_LANE", std::to_string(lane)}};
  if (!study_id.empty()) environment["LOCKSTEP_STUDY"] = study_id;
  if (!devices.empty()) environment["CUDA_VISIBLE_DEVICES"] = devices;
  return environment;
}

std::unique_ptr<tune::Evaluator> make_worker(const JsonReader& reader, const tune::Space& space,
                                             std::map<std::string, std::string> environment,
                                             const std::filesystem::path& logs, std::size_t lane,
                                             const std::string& unit) {
  tune::WorkerOptions options;
  options.command = reader.text("command");
  options.devices = reader.text("gpus", "");
  options.directory = reader.text("directory", "");
  options.environment = std::move(environment);
  options.unit = unit;
  if (!logs.empty()) options.log = logs / fmt::format("worker-{}.log", lane);
  return tune::make_worker_evaluator(space, options);
}

std::unique_ptr<tune::Evaluator> make_command(const JsonReader& reader, const tune::Space& space,
                                              std::map<std::string, std::string> environment,
                                              const std::filesystem::path& logs, std::vector<std::string> values) {
  tune::CommandOptions options;
  options.values = std::move(values);
  options.command = reader.text("command");
  options.devices = reader.text("gpus", "");
  options.directory = reader.text("directory", "");
  options.metric = reader.text("metric", "");
  options.hang_seconds = reader.real_or("hang_seconds", 0);
  options.memory_bytes = reader.real_or("memory_bytes", 0);
  options.own_folder = reader.boolean_or("isolate", false);
  options.environment = std::move(environment);
  options.logs = logs;
  return tune::make_command_evaluator(space, options);
}

// A number of GPUs that is the same for every trial, 0 when a knob decides.
int devices_of_a_trial(const std::string& gpus) {
  if (gpus.empty()) return 1;
  return gpus.find_first_not_of("0123456789") == std::string::npos ? std::atoi(gpus.c_str()) : 0;
}

}  // namespace

std::vector<std::string> devices_by_lane(const std::vector<std::string>& visible, int lanes, int devices_per_lane) {
  std::vector<std::string> shares(static_cast<std::size_t>(lanes));
  if (lanes == 1 || visible.empty() || devices_per_lane < 1) return shares;
  const std::size_t each = static_cast<std::size_t>(devices_per_lane);
  if (visible.size() < each * shares.size()) {
    throw environment_error(fmt::format("{} trials at a time of {} GPUs need {} GPUs and {} are visible", lanes,
                                        devices_per_lane, each * shares.size(), visible.size()),
                            "lower --parallel or --gpus");
  }
  for (std::size_t lane = 0; lane < shares.size(); ++lane) {
    const auto first = visible.begin() + static_cast<std::ptrdiff_t>(lane * each);
    shares[lane] = join({first, first + devices_per_lane}, ",");
  }
  return shares;
}

TrialSource make_trial_source(const tune::Space& space, const tune::StudySetup& setup, const std::string& study_id,
                              int lanes, std::size_t first_lane) {
  const JsonReader reader(setup.evaluator, "study", "evaluator");
  const std::string kind = reader.text("kind");
  if (lanes == 0) lanes = static_cast<int>(reader.integer_or("parallel", 1, 1, 256));
  TrialSource source;
  if (!study_id.empty()) source.logs = telemetry::home_directory() / "studies" / study_id;
  if (kind == "engine" || kind == "simulate") {
    add_job_trials(source, space, setup, lanes);
    source.prior = make_prior(space, setup);
    return source;
  }
  if (kind != "worker" && kind != "command") {
    throw bad_input(fmt::format("the study's trials come from `{}`, which this build does not know", printable(kind)),
                    "resume it with the version that made it");
  }
  std::vector<std::string> devices(static_cast<std::size_t>(lanes));
  if (reader.text("on", "").empty()) {
    tune::end_orphans();  // trials of a killed study may still hold the devices
    devices = devices_by_lane(visible_devices(), lanes, devices_of_a_trial(reader.text("gpus", "")));
  }
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const std::size_t lane = first_lane + i;
    auto environment = lane_environment(lane, devices[i], study_id);
    source.lanes.push_back(kind == "worker" ? make_worker(reader, space, environment, source.logs, lane, setup.unit)
                                            : make_command(reader, space, environment, source.logs,
                                                           tune::printed_values(setup.strategy.objectives)));
  }
  source.prior = make_prior(space, setup);
  return source;
}

std::unique_ptr<tune::Prior> make_prior(const tune::Space& space, const tune::StudySetup& setup) {
  const JsonReader reader(setup.evaluator, "study", "evaluator");
  // Not where the prediction is what is measured: the prior would be the answer.
  const bool engine = reader.text("kind") == "engine";
  std::unique_ptr<tune::Prior> prior =
      engine && reader.boolean_or("prior", true) ? make_job_prior(space, setup) : nullptr;
  if (!reader.has("transfer")) return prior;
  std::vector<tune::Trial> earlier;
  for (const JsonReader& study : reader.objects("transfer")) {
    tune::EarlierStudy told;
    for (const JsonReader& row : study.objects("trials")) {
      const auto outcome = value_named<tune::Outcome>(row.text("outcome")).value_or(tune::Outcome::kCrash);
      told.trials.push_back(
          {row.object("config").value(), outcome, row.real_or("throughput", 0), row.text("message", "")});
    }
    for (tune::Trial& trial : tune::place_trials(space, told)) earlier.push_back(std::move(trial));
  }
  return tune::make_transfer_prior(space, earlier, std::move(prior));
}

std::unique_ptr<tune::Evaluator> make_single_evaluator(const tune::StoredStudy& study) {
  return std::move(make_trial_source(study.space, study.setup, "", 1).lanes.front());
}

}  // namespace lockstep::cli
