#include "lockstep/cli/tune_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/cli/tune_job.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/tune/evaluators/process.h"
#include "lockstep/tune/evaluators/template.h"
#include "lockstep/tune/transfer/earlier.h"

namespace lockstep::cli {
namespace {

constexpr const char* kBudgetFix = "write it as 2gpu-hours, 30gpu-minutes or 4rank-hours";

std::string kind_of(const TuneFlags& flags) {
  std::vector<std::string> kinds;
  if (!flags.worker.empty()) kinds.push_back("worker");
  if (!flags.command.empty()) kinds.push_back("command");
  if (!flags.job_file.empty()) kinds.push_back(flags.simulate ? "simulate" : "engine");
  if (kinds.empty()) {
    throw bad_input("there is nothing to tune",
                    "name a job file, or --space FILE with --worker CMD or --command CMD (see `lockstep tune --help`)");
  }
  if (kinds.size() > 1) {
    throw bad_input(fmt::format("trials come from one place, not from {}", join(kinds, " and ")),
                    "use a job file, --worker or --command");
  }
  if (flags.simulate && flags.job_file.empty()) {
    throw bad_input("--simulate prices a job and there is none", "name the job file");
  }
  return kinds.front();
}

void refuse_unused(const TuneFlags& flags, const std::string& kind) {
  const bool job = kind == "engine" || kind == "simulate";
  const struct {
    const char* flag;
    bool given, allowed;
  } rules[] = {{"--gpus", !flags.gpus.empty(), !job},
               {"--metric", !flags.metric.empty(), kind == "command"},
               {"--memory-limit", !flags.memory_limit.empty(), kind == "command"},
               {"--hang-timeout", !flags.hang_timeout.empty(), kind == "command"},
               {"--isolate", flags.isolate, kind == "command"},
               {"--backend", !flags.backend.empty(), kind == "engine"},
               {"--on", !flags.on.empty(), kind != "simulate"},
               {"--launch", !flags.launch.empty(), !job}};
  for (const auto& rule : rules) {
    if (rule.given && !rule.allowed) {
      throw bad_input(fmt::format("{} means nothing for trials by {}", rule.flag, job ? "a job" : "--" + kind),
                      "leave it out");
    }
  }
}

nlohmann::json evaluator_json(const TuneFlags& flags, const std::string& kind) {
  nlohmann::json evaluator{{"kind", kind}, {"parallel", flags.parallel}};
  if (kind == "worker" || kind == "command") {
    evaluator["command"] = kind == "worker" ? flags.worker : flags.command;
    evaluator["gpus"] = flags.gpus;
    evaluator["directory"] = std::filesystem::current_path().string();
  }
  if (kind == "command") {
    evaluator["metric"] = flags.metric;
    evaluator["isolate"] = flags.isolate;
    evaluator["memory_bytes"] = flags.memory_limit.empty() ? 0.0 : parse_bytes(flags.memory_limit);
    evaluator["hang_seconds"] =
        flags.hang_timeout.empty() ? 0.0 : parse_trial_seconds(flags.hang_timeout, "--hang-timeout");
  }
  if (!flags.on.empty()) evaluator["on"] = flags.on;
  if (!flags.launch.empty()) evaluator["launch"] = std::filesystem::absolute(flags.launch).string();
  return evaluator;
}

void check_numbers(const TuneFlags& flags) {
  if (flags.trials < 1) throw bad_input("--trials counts from 1", "45 is a good number");
  if (flags.parallel < 1 || flags.parallel > 256) throw bad_input("--parallel is 1 to 256", "1 where in doubt");
}

// What several objectives need beyond what a trial gives anyway.
void set_objectives(const TuneFlags& flags, const std::string& kind, tune::StrategyOptions& strategy) {
  if (flags.objective.empty()) {
    if (flags.usd_per_gpu_hour > 0) throw bad_input("--usd-per-gpu-hour prices nothing", "add --objective dollars");
    return;
  }
  strategy.objectives = tune::parse_objectives(flags.objective);
  strategy.usd_per_device_hour = flags.usd_per_gpu_hour;
  for (const tune::Objective& objective : strategy.objectives) {
    const bool host = objective.value == tune::kHostMemoryValue, device = objective.value == tune::kDeviceMemoryValue;
    const bool dollars = objective.source == tune::Objective::Source::kDollars;
    if (dollars && !(strategy.usd_per_device_hour > 0))
      throw bad_input("--objective dollars needs a price", "add --usd-per-gpu-hour 2.5");
    if (device && kind == "engine")
      throw bad_input("trials by our engine do not tell the devices' memory", "use host_memory, or --simulate");
    if ((host && kind != "command" && kind != "engine") ||
        (kind == "simulate" && objective.source == tune::Objective::Source::kPrinted && !device))
      throw bad_input(fmt::format("--objective {}: trials of this kind have no such figure", printable(objective.name)),
                      "use memory or dollars");
  }
}

tune::EarlierStudy read_earlier(const std::string& source) {
  if (auto study = tune::read_earlier_file(source)) return std::move(*study);
  return tune::earlier_of(tune::load_study(*telemetry::open_study_store(telemetry::home_directory(), false), source));
}

// Kept with the study: the earlier ones may be gone when it is resumed.
void set_transfer(const TuneFlags& flags, TuneRequest& request) {
  nlohmann::json kept = nlohmann::json::array();
  for (const std::string& source : flags.transfer) {
    const tune::EarlierStudy earlier = read_earlier(source);
    const std::vector<tune::Trial> trials = tune::place_trials(request.space, earlier);
    const auto ran = std::count_if(trials.begin(), trials.end(), [](const auto& t) { return tune::measured(t); });
    if (ran == 0) {
      throw bad_input(fmt::format("--transfer {}: none of its {} trials ran and has a place in this space",
                                  printable(source), earlier.trials.size()),
                      "knobs are matched by their names; see `lockstep tune --dry-run`");
    }
    nlohmann::json rows = nlohmann::json::array();
    for (const tune::Trial& trial : trials) {
      nlohmann::json row{{"config", request.space.to_json(trial.config)}, {"outcome", tune::to_string(trial.outcome)}};
      if (tune::measured(trial)) row["throughput"] = trial.throughput;
      if (!trial.message.empty()) row["message"] = printable(trial.message, 200);
      rows.push_back(std::move(row));
    }
    kept.push_back({{"name", earlier.name}, {"told", earlier.trials.size()}, {"trials", std::move(rows)}});
  }
  if (!kept.empty()) request.setup.evaluator["transfer"] = std::move(kept);
}

std::string name_of(const TuneFlags& flags) {
  if (!flags.name.empty()) return flags.name;
  const std::string& file = flags.job_file.empty() ? flags.space : flags.job_file;
  return std::filesystem::path(file).stem().string();
}

}  // namespace

double parse_gpu_budget(const std::string& text) {
  const std::string lower = to_lower(trim(text));
  double number = 0;
  const auto [end, error] = std::from_chars(lower.data(), lower.data() + lower.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number <= 0) {
    throw bad_input(fmt::format("--budget {}: no number above 0", printable(text)), kBudgetFix);
  }
  std::string unit(trim(std::string_view(end, static_cast<std::size_t>(lower.data() + lower.size() - end))));
  const std::size_t dash = unit.find_first_of("- ");
  const std::string device = unit.substr(0, dash);
  const std::string time = dash == std::string::npos ? "" : unit.substr(dash + 1);
  const bool device_known = device == "gpu" || device == "rank" || device == "device";
  const std::pair<const char*, double> times[] = {{"hour", 3600}, {"minute", 60}, {"second", 1}, {"h", 3600},
                                                  {"min", 60},    {"m", 60},      {"s", 1},      {"sec", 1}};
  for (const auto& [name, seconds] : times) {
    if (device_known && (time == name || time == fmt::format("{}s", name))) return number * seconds;
  }
  throw bad_input(fmt::format("--budget {}: `{}` is not a unit", printable(text), printable(unit)), kBudgetFix);
}

double parse_trial_seconds(const std::string& text, const std::string& flag) {
  const bool bare = !text.empty() && text.find_first_not_of("0123456789.") == std::string::npos;
  const double seconds = bare ? parse_real(text) : parse_seconds(text);
  if (!(seconds > 0)) throw bad_input(fmt::format("{} {}: not above 0", flag, printable(text)), "write 90 or 2m");
  return seconds;
}

namespace {

TuneRequest make_program_request(const TuneFlags& flags, const std::string& kind, tune::StudySetup setup) {
  if (flags.space.empty()) {
    throw bad_input(fmt::format("--{} needs a space of knobs", kind), "add --space FILE.yaml or a preset");
  }
  tune::Space space = tune::Space::load(flags.space);
  // Said now rather than by the first trial.
  if (kind == "command") {
    const std::vector<std::string> hidden = tune::CommandTemplate(flags.command, space).hidden_knobs();
    if (!hidden.empty()) {
      fmt::print(stderr,
                 "lockstep: note: the command hands over no {}: a program that does not read LOCKSTEP_KNOB_* does not "
                 "feel them; write {{{}}} into the command, or take it out of the space\n",
                 join(hidden, ", "), hidden.front());
    }
  }
  if (kind == "worker") tune::split_command(flags.worker);
  tune::DeviceCount(flags.gpus, space);
  return {std::move(space), std::move(setup)};
}

}  // namespace

TuneRequest make_tune_request(const TuneFlags& flags) {
  const std::string kind = kind_of(flags);
  refuse_unused(flags, kind);
  if (!flags.launch.empty() && flags.on.empty()) {
    throw bad_input("--launch holds the settings of a scheduler, and trials run here", "add --on slurm");
  }
  check_numbers(flags);
  tune::StudySetup setup;
  setup.name = name_of(flags);
  setup.evaluator = evaluator_json(flags, kind);
  setup.strategy.trials = flags.trials;
  setup.strategy.gpu_seconds = flags.budget.empty() ? 0 : parse_gpu_budget(flags.budget);
  if (!flags.trial_seconds.empty()) {
    setup.strategy.trial_seconds = parse_trial_seconds(flags.trial_seconds, "--trial-seconds");
  }
  setup.strategy.seed = flags.seed;
  setup.strategy.importance = flags.importance;
  setup.strategy.confirmations = flags.confirm;
  setup.evaluator["prior"] = flags.prior;
  setup.versions["lockstep"] = LOCKSTEP_VERSION;
  set_objectives(flags, kind, setup.strategy);
  TuneRequest request = kind == "engine" || kind == "simulate" ? make_job_request(flags, std::move(setup))
                                                               : make_program_request(flags, kind, std::move(setup));
  set_transfer(flags, request);
  return request;
}

bool apply_on_resume(const TuneFlags& flags, const std::vector<std::string>& given, tune::StudySetup& setup) {
  bool changed = false;
  for (const std::string& flag : given) {
    if (flag == "--trials") {
      changed = changed || setup.strategy.trials != flags.trials;
      setup.strategy.trials = flags.trials;
    } else if (flag == "--budget") {
      const double budget = parse_gpu_budget(flags.budget);
      changed = changed || setup.strategy.gpu_seconds != budget;
      setup.strategy.gpu_seconds = budget;
    } else if (flag == "--parallel") {
      changed = changed || setup.evaluator.value("parallel", 1) != flags.parallel;
      setup.evaluator["parallel"] = flags.parallel;
    } else {
      throw bad_input(fmt::format("{} cannot change in a study that goes on", flag),
                      "only --trials, --budget and --parallel can; leave the others out or start a new study");
    }
  }
  check_numbers(flags);
  return changed;
}

}  // namespace lockstep::cli
