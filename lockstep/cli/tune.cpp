// `lockstep tune`: finds the fastest setting of a job, a command or whatever a worker measures.
#include <fmt/format.h>

#include <atomic>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/signals.h"
#include "lockstep/cli/stack_versions.h"
#include "lockstep/cli/tune_array.h"
#include "lockstep/cli/tune_evaluators.h"
#include "lockstep/cli/tune_progress.h"
#include "lockstep/cli/tune_request.h"
#include "lockstep/cli/tune_show.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/report/study/text.h"
#include "lockstep/spec/backends.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::cli {
namespace {

struct TuneOptions {
  TuneFlags flags;
  std::string resume, show, export_to;
  bool resuming = false, showing = false, list = false, dry_run = false, json = false, take_over = false, all = false;
  std::vector<std::string> given;  // flags on the command line that set up a study
};

using Store = std::shared_ptr<telemetry::StudyStore>;

// The newest study that was set up just so; "": there is none.
std::string find_like(const Store& store, const TuneRequest& request) {
  for (const telemetry::StudyRow& row : store->studies(1000)) {
    if (row.info.name != request.setup.name) continue;
    const tune::StoredStudy study = tune::load_study(*store, row.info.id);
    tune::StudySetup setup = request.setup;
    setup.strategy.trials = study.setup.strategy.trials;  // these three may differ
    setup.strategy.gpu_seconds = study.setup.strategy.gpu_seconds;
    setup.evaluator["parallel"] = study.setup.evaluator.value("parallel", 1);
    setup.unit = study.setup.unit;
    if (tune::to_json(setup) == tune::to_json(study.setup) && study.space.to_yaml() == request.space.to_yaml()) {
      return study.id();
    }
  }
  return "";
}

tune::OpenStudy reopen(const Store& store, const TuneOptions& options, const std::string& id,
                       const std::vector<std::string>& changes) {
  tune::OpenStudy open = tune::resume_study(store, id, options.take_over);
  if (apply_on_resume(options.flags, changes, open.study.setup)) {
    tune::save_setup(*store, open.study.id(), open.study.setup);
  }
  return open;
}

// A study to run: an old one that goes on, or a new one.
tune::OpenStudy open_study(const Store& store, const TuneOptions& options) {
  if (options.resuming && !options.flags.has_source()) {
    return reopen(store, options, options.resume.empty() ? "last" : options.resume, options.given);
  }
  const TuneRequest request = make_tune_request(options.flags);
  if (!options.resuming) return tune::create_study(store, request.space, with_versions(request.setup));
  // The whole command again with --resume: what it sets up must be what the study was told.
  const std::string id = find_like(store, request);
  if (!options.resume.empty() && (id.empty() || !id.starts_with(options.resume))) {
    throw bad_input(fmt::format("study {} was set up differently", printable(options.resume)),
                    fmt::format("go on with it as it was: lockstep tune --resume {}", printable(options.resume)));
  }
  if (id.empty()) {
    fmt::print(stderr, "lockstep: note: no study like this one to resume; it begins now\n");
    return tune::create_study(store, request.space, with_versions(request.setup));
  }
  std::vector<std::string> changes;
  for (const std::string& flag : options.given)
    if (flag == "--trials" || flag == "--budget" || flag == "--parallel") changes.push_back(flag);
  return reopen(store, options, id, changes);
}

nlohmann::json result_json(const tune::StoredStudy& study, const tune::StudyResult& result) {
  nlohmann::json document = report::study_json(study, result.conclusion);
  document.erase("history");  // `tune --show STUDY --json` has them
  document.erase("space");
  document["status"] = result.interrupted ? "interrupted" : "done";
  document["out_of_budget"] = result.out_of_budget;
  return document;
}

int report_result(const TuneOptions& options, const Store& store, const std::string& id,
                  const tune::StudyResult& result) {
  const tune::StoredStudy study = tune::load_study(*store, id);
  std::FILE* notes = options.json ? stderr : stdout;
  if (!options.export_to.empty()) export_study(id, options.export_to, notes);
  if (options.json) {
    fmt::print("{}\n", result_json(study, result).dump());
  } else {
    fmt::print("{}", result_text(study, result));
  }
  std::fflush(stdout);
  if (result.interrupted) {
    fmt::print(stderr, "lockstep: stopped; nothing is lost: lockstep tune --resume {}\n", id);
    return static_cast<int>(ExitCode::kInterrupted);
  }
  if (result.conclusion.best) return 0;
  fmt::print(stderr, "lockstep: none of {} trials ran; see `lockstep tune --show {}`\n", result.trials.size(), id);
  return static_cast<int>(ExitCode::kAnswerIsNo);
}

int run(const TuneOptions& options) {
  const Store store = telemetry::open_study_store(telemetry::home_directory());
  tune::OpenStudy open = open_study(store, options);
  TrialSource source = make_trial_source(open.study.space, open.study.setup, open.study.id());
  const std::unique_ptr<TrialArray> array = move_trials(open.study, source, options.json ? stderr : stdout);
  tune::StrategyOptions strategy_options = open.study.setup.strategy;
  strategy_options.prior = source.prior.get();
  const tune::Strategy strategy(open.study.space, strategy_options);

  count_stop_signals(SecondSignal::kExits);
  std::atomic<bool> stop = false;
  std::FILE* display = options.json ? stderr : stdout;
  TuneProgress progress(display, open.study);
  progress.begin();
  const tune::StudyResult result =
      tune::run_study(strategy, source.lanes, *open.journal, &stop, [&](const tune::StudyProgress& now) {
        stop = stop_signals() > 0;
        if (source.lanes.front()->unit() != open.study.setup.unit && now.ended != nullptr) {
          open.study.setup.unit = source.lanes.front()->unit();  // known once a program printed its metric
          tune::save_setup(*store, open.study.id(), open.study.setup);
        }
        progress.update(now);
      });
  progress.finish();
  open.journal.reset();
  return report_result(options, store, open.study.id(), result);
}

int tune_verb(const TuneOptions& options) {
  if (options.list) return list_studies(options.json);
  if (options.showing && options.export_to.empty()) {
    return show_study(options.show.empty() ? "last" : options.show, options.all, options.json);
  }
  if (!options.export_to.empty() && !options.resuming && !options.flags.has_source()) {
    export_study(options.show.empty() ? "last" : options.show, options.export_to, options.json ? stderr : stdout);
    return 0;
  }
  if (options.dry_run) return dry_run(make_tune_request(options.flags), options.json);
  return run(options);
}

void add_source_flags(CLI::App& verb, TuneFlags& flags) {
  verb.add_option("job", flags.job_file, "Job file: trials are short runs of our engine");
  verb.add_option("overrides", flags.overrides, "key=value for any field of the job file");
  verb.add_option("--space", flags.space, "Knobs and rules: a YAML file or a preset (docs/reference/tuning-spaces.md)");
  verb.add_option("--worker", flags.worker, "Program that measures trial after trial, one JSON line each way");
  verb.add_option("--command", flags.command, "Command of one trial with {knob} in its arguments; no shell is used");
  verb.add_flag("--simulate", flags.simulate, "Price the job's trials instead of running them");
  verb.add_option("--gpus", flags.gpus, "Devices that a trial holds: a number or the knob that says it (default: 1)");
  verb.add_option("--metric", flags.metric,
                  "What --command prints as throughput (default: tokens_per_second, samples_per_second, throughput)");
  verb.add_option("--hang-timeout", flags.hang_timeout, "--command: no output for so long is a hang: 30s");
  verb.add_option("--memory-limit", flags.memory_limit, "--command: more memory than that is out of memory: 8GiB");
  verb.add_flag("--isolate", flags.isolate, "--command: every trial in an empty folder of its own");
  verb.add_option("--backend", flags.backend, "Jobs: communicator")->check(CLI::IsMember(spec::backend_names()));
  verb.add_option("--on", flags.on, "Run the trials there, --parallel at a time: slurm (as tasks of a job array)")
      ->check(CLI::IsMember({"slurm"}));
  verb.add_option("--launch", flags.launch, "--on with --worker or --command: file with a `launch:` section");
  add_observation_switch(verb);
  verb.add_option("--profile", flags.profile, "Jobs: profile that prices them (default: by the devices)")
      ->envname("LOCKSTEP_PROFILE");
}

void add_study_flags(CLI::App& verb, TuneFlags& flags) {
  verb.add_option("--trials", flags.trials, "Evaluations, everything included")->capture_default_str();
  verb.add_option("--budget", flags.budget, "Hard bound: 2gpu-hours, 30gpu-minutes, 4rank-hours");
  verb.add_option("--trial-seconds", flags.trial_seconds, "What one trial may take, launch included (default: 60)");
  verb.add_option("--seed", flags.seed, "Same seed and answers, same study")->capture_default_str();
  verb.add_option("--parallel", flags.parallel, "Trials at the same time")->capture_default_str();
  verb.add_option("--confirm", flags.confirm, "Fresh launches of the winner (default: by the number of trials)")
      ->check(CLI::NonNegativeNumber);
  verb.add_flag("!--no-importance", flags.importance, "Spend no trials on what each knob is worth");
  verb.add_flag("!--no-prior", flags.prior, "Jobs: do not start from the planner's prediction");
  verb.add_option("--objective", flags.objective,
                  "Several: tokens_per_second,memory (or host_memory, dollars, min:NAME, max:NAME): a Pareto front");
  verb.add_option("--usd-per-gpu-hour", flags.usd_per_gpu_hour, "Price for the objective `dollars`")
      ->check(CLI::PositiveNumber);
  verb.add_option("--transfer", flags.transfer,
                  "Earlier study as evidence that may be wrong: an id, Optuna's FILE.db#NAME, or FILE.csv, FILE.json");
  verb.add_option("--name", flags.name, "Name of the study (default: of the job or space)");
}

void add_past_flags(CLI::App& verb, TuneOptions& options) {
  verb.add_flag("--take-over", options.take_over, "--resume a study whose owner on another host is known to be gone");
  verb.add_flag("--all", options.all, "--show every trial instead of the fastest");
  verb.add_flag("--list", options.list, "List the studies");
  verb.add_option("--export", options.export_to, "Write the trials: csv:FILE or optuna:FILE.db (of --show, else last)");
  verb.add_flag("--dry-run", options.dry_run, "Show the space, its rules and the first proposals; run nothing");
  verb.add_flag("--json", options.json, "Last line of stdout is JSON (lockstep.study/1); all else goes to stderr");
}

// The flags of the command line that say what is studied and how.
std::vector<std::string> given_flags(const CLI::App& verb) {
  static const std::vector<std::string> kNames{"--space",    "--worker",        "--command",          "--simulate",
                                               "--gpus",     "--metric",        "--hang-timeout",     "--isolate",
                                               "--backend",  "--trials",        "--budget",           "--seed",
                                               "--parallel", "--trial-seconds", "--confirm",          "--name",
                                               "--no-prior", "--no-importance", "--memory-limit",     "--on",
                                               "--launch",   "--objective",     "--usd-per-gpu-hour", "--transfer"};
  std::vector<std::string> given;
  for (const std::string& name : kNames)
    if (verb.count(name) > 0) given.push_back(name);
  return given;
}

}  // namespace

void add_tune(CLI::App& app, Outcome& outcome) {
  auto options = std::make_shared<TuneOptions>();
  CLI::App* verb = app.add_subcommand("tune", "Finds the fastest setting within a fixed number of trials or GPU-hours");
  add_source_flags(*verb, options->flags);
  add_study_flags(*verb, options->flags);
  CLI::Option* resume =
      verb->add_option("--resume", options->resume, "Go on with a study (default: the last)")->expected(0, 1);
  CLI::Option* show = verb->add_option("--show", options->show, "Print a study (default: the last)")->expected(0, 1);
  add_past_flags(*verb, *options);
  set_examples(
      *verb,
      "  lockstep tune specs/jobs/tune-cpu.yaml --trials 30\n"
      "  lockstep tune specs/jobs/7b-instruct.yaml --simulate\n"
      "  lockstep tune --space space.yaml --worker ./measure.py --trials 45 --budget 2gpu-hours --gpus 8\n"
      "  lockstep tune --space space.yaml --command \"python3 train.py --mb {micro_batch}\" --trial-seconds 90\n"
      "  lockstep tune --space space.yaml --command \"python3 train.py\" --dry-run\n"
      "  lockstep tune --space space.yaml --command \"python3 train.py {micro_batch}\" --objective "
      "tokens_per_second,memory\n"
      "  lockstep tune --space space.yaml --worker ./measure.py --transfer optuna.db#old\n"
      "  lockstep tune job.yaml --on slurm --parallel 8         (docs/how-to/launch-on-slurm.md)\n"
      "  lockstep tune --resume                     (after Ctrl-C or a crash)\n"
      "  lockstep tune --show last\n"
      "  lockstep tune --export csv:trials.csv");
  verb->callback([options, verb, resume, show, &outcome] {
    outcome.json = options->json;
    options->resuming = resume->count() > 0;
    options->showing = show->count() > 0;
    options->given = given_flags(*verb);
    outcome.exit_code = tune_verb(*options);
  });
}

}  // namespace lockstep::cli
