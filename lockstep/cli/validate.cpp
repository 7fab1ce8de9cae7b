// `lockstep validate JOB`: checks a plan on small copies of the job that run here.
#include <fmt/format.h>

#include <filesystem>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/cli/validation_session.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/report/document/text.h"
#include "lockstep/spec/backends.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

struct ValidateOptions {
  ValidateFlags flags;
  std::string output, report, budget = "2m", parameters, calibrate = "each";
  double within = 0;
  bool dry_run = false, json = false;
};

nlohmann::json choice_json(const ValidationPlan& plan) {
  nlohmann::json proxies = nlohmann::json::array(), unchecked = nlohmann::json::array();
  for (const planner::Proxy& proxy : plan.choice.proxies) {
    nlohmann::json differences = nlohmann::json::array(), checks = nlohmann::json::array();
    for (const planner::Difference& row : proxy.differences) {
      differences.push_back({{"what", row.what}, {"target", row.target}, {"proxy", row.proxy}, {"why", row.why}});
    }
    for (const planner::Parallelism kind : proxy.checks) checks.push_back(planner::to_string(kind));
    proxies.push_back({{"name", proxy.job.name},
                       {"layout", plan::to_string(proxy.layout)},
                       {"checks", std::move(checks)},
                       {"parameters", spec::parameter_count(proxy.job.model)},
                       {"assumed_step_seconds", proxy.assumed_step_seconds},
                       {"differences", std::move(differences)}});
  }
  for (const planner::Unchecked& open : plan.choice.unchecked) {
    unchecked.push_back({{"what", open.what}, {"why", open.why}});
  }
  return {{"schema", "lockstep.proxies/1"},
          {"job", plan.job.name},
          {"layout", plan::to_string(plan.target.best.layout)},
          {"ranks", plan.machine.node.devices_per_node},
          {"device", plan.machine.node.device.kind},
          {"assumed_seconds", plan.choice.assumed_seconds},
          {"over_budget", plan.choice.over_budget},
          {"proxies", std::move(proxies)},
          {"unchecked", std::move(unchecked)}};
}

void show_choice(std::FILE* out, const ValidationPlan& plan) {
  const plan::Candidate& best = plan.target.best;
  fmt::print(out, "{}: {} on {}, {}\n", plan.job.name, plan.job.model.name, plan.target.cluster.name,
             plan::to_string(best.layout));
  for (const planner::Proxy& proxy : plan.choice.proxies) {
    const spec::Model& model = proxy.job.model;
    std::vector<std::string> checks;
    for (const planner::Parallelism kind : proxy.checks) checks.emplace_back(planner::to_string(kind));
    fmt::print(out, "  {}: {} on {}, {} parameters{}, checks {}\n", proxy.job.name, plan::to_string(proxy.layout),
               proxy.job.cluster.name, format_count(static_cast<double>(spec::parameter_count(model))),
               proxy.is_job       ? " (the job itself)"
               : model.hidden > 0 ? fmt::format(" ({} layers, {} wide, sequence {})", model.layers, model.hidden,
                                                proxy.job.batch.sequence_length)
                                  : "",
               checks.empty() ? "how a step adds up on one rank" : join(checks, ", "));
  }
  for (const planner::Unchecked& open : plan.choice.unchecked) {
    fmt::print(out, "  not checked: {}: {}\n", open.what, open.why);
  }
  fmt::print(out, "  training takes about {}{}\n", format_seconds(plan.choice.assumed_seconds),
             plan.choice.over_budget ? ", more than asked for: the smallest proxies there are" : "");
}

void show_differences(const ValidationPlan& plan) {
  fmt::print("\nhow {} differs from the job:\n", plan.choice.proxies.front().job.name);
  for (const planner::Difference& row : plan.choice.proxies.front().differences) {
    fmt::print("  {:<14} {} -> {}: {}\n", row.what, row.target, row.proxy, row.why);
  }
}

std::string output_of(const ValidateOptions& options, const ValidationPlan& plan) {
  if (!options.output.empty()) return options.output;
  std::string time = utc_timestamp(unix_seconds());
  std::erase_if(time, [](char c) { return c == ':' || c == '-'; });
  return (telemetry::home_directory() / "validations" / fmt::format("{}-{}.json", plan.job.name, time)).string();
}

void read_texts(ValidateOptions& options) {
  planner::ProxyLimits& limits = options.flags.limits;
  limits.budget_seconds = parse_seconds(options.budget, {"--budget"});
  if (!(limits.budget_seconds > 0)) throw bad_input("is not above 0", "for example 2m", {"--budget"});
  if (!options.parameters.empty()) limits.parameters = parse_count(options.parameters, {"--parameters"});
  options.flags.calibrating = value_named<Calibrating>(options.calibrate).value_or(Calibrating::kEach);
  if (!options.report.empty() && fs::path(options.report).extension() != ".md") {
    throw bad_input(fmt::format("`{}` does not end in .md", printable(options.report)), "name a Markdown file",
                    {"--report"});
  }
  for (const std::string& file : {options.output, options.report}) {
    if (file.empty()) continue;
    const fs::path folder = fs::absolute(file).parent_path();
    if (!fs::is_directory(folder)) {  // before minutes of work
      throw bad_input(fmt::format("there is no folder {}", printable_path(folder)), "make it first", {file});
    }
  }
}

int judge(const ValidateOptions& options, const nlohmann::json& document) {
  if (options.within <= 0) return 0;
  const double worst = document.at("summary").at("worst_error_percent").get<double>();
  if (worst <= options.within) return 0;
  fmt::print(stderr, "lockstep: predicted and measured throughput differ by {:.1f}%, more than --within {}\n", worst,
             options.within);
  return static_cast<int>(ExitCode::kAnswerIsNo);
}

int validate_verb(ValidateOptions& options) {
  read_texts(options);
  const ValidationPlan plan = plan_validation(options.flags);
  if (options.dry_run) {
    if (options.json) {
      fmt::print("{}\n", choice_json(plan).dump(1));
    } else {
      show_choice(stdout, plan);
      show_differences(plan);
      fmt::print("\nNext: lockstep validate {}\n", shell_quoted(options.flags.job_file));
    }
    return 0;
  }
  std::FILE* display = options.json ? stderr : stdout;
  show_choice(display, plan);
  const nlohmann::json document = report::to_json(run_validation(plan, options.flags, display));
  const std::string output = output_of(options, plan);
  make_folders(fs::absolute(output).parent_path());
  write_file_atomically(output, document.dump(1) + "\n");
  const report::Document page = report::validation_document(document);
  if (!options.report.empty()) write_file_atomically(options.report, report::to_markdown(page));
  if (options.json) {
    fmt::print("{}\n", document.dump());
  } else {
    fmt::print("\n{}\nwrote {}\nNext: lockstep runbook {} --validation {} -o runbook.pdf\n", report::to_text(page),
               printable(output, kLongestName), shell_quoted(options.flags.job_file), shell_quoted(output));
  }
  return judge(options, document);
}

void add_limits(CLI::App& verb, ValidateOptions& options) {
  planner::ProxyLimits& limits = options.flags.limits;
  verb.add_option("--ranks", options.flags.ranks, "Ranks of a proxy (default: this machine's cores or GPUs)")
      ->check(CLI::Range(1, 1024));
  verb.add_option("--steps", limits.steps, "Steps of every run")->check(CLI::Range(3, 100000))->capture_default_str();
  verb.add_option("--repetitions", limits.repetitions, "Runs of every proxy; odd numbers have a middle")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  verb.add_option("--budget", options.budget, "Time for training, all runs together; decides how large proxies are")
      ->capture_default_str();
  verb.add_option("--parameters", options.parameters, "Most parameters of a proxy (default: a tenth of the job's)");
  verb.add_option("--proxies", limits.proxies, "Most proxies (default: until every kind of parallelism is checked)")
      ->check(CLI::Range(1, 100));
}

}  // namespace

void add_validate(CLI::App& app, Outcome& outcome) {
  auto options = std::make_shared<ValidateOptions>();
  ValidateFlags& flags = options->flags;
  CLI::App* verb =
      app.add_subcommand("validate", "Checks a plan on small copies of the job that run here: predicted, measured");
  verb->add_option("job", flags.job_file, "Job file (docs/reference/job-file.md)")->required();
  verb->add_option("overrides", flags.overrides, "key=value for any field of the file");
  verb->add_option("--plan", flags.plan_file, "The plan to check (default: the planner's)");
  verb->add_option("--device", flags.device, "Where proxies run (default: cuda where build and machine have it)")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  add_limits(*verb, *options);
  verb->add_option("--calibrate", options->calibrate,
                   "Measure the machine before each round of runs, once, or never (its own profile is used)")
      ->check(CLI::IsMember({"each", "once", "never"}))
      ->capture_default_str();
  verb->add_option("--profile", flags.profile, "Price the proxies by this profile, a name or file; measures nothing");
  verb->add_option("--backend", flags.backend, "Communicator of the proxies (default: the job's)")
      ->check(CLI::IsMember(spec::backend_names()));
  verb->add_option("--seed", flags.seed, "Of the first repetition")->capture_default_str();
  verb->add_option("--within", options->within,
                   "Exit code 3 where the throughput of a proxy is further off than this many percent")
      ->check(CLI::PositiveNumber);
  verb->add_option("--output", options->output, "JSON file (default: $LOCKSTEP_HOME/validations/JOB-TIME.json)");
  verb->add_option("--report", options->report, "The report as Markdown, a file that ends in .md");
  verb->add_flag("--dry-run", options->dry_run, "Choose proxies and show them; measure nothing");
  verb->add_flag("--json", options->json, "JSON on stdout (lockstep.validation/1; of --dry-run lockstep.proxies/1)");
  set_examples(*verb,
               "  lockstep validate specs/jobs/llama2-13b-32xH100.yaml --dry-run\n"
               "  lockstep validate specs/jobs/llama2-13b-32xH100.yaml --output validation.json --report check.md\n"
               "  lockstep validate job.yaml --ranks 4 --repetitions 5 --within 10\n"
               "  lockstep validate job.yaml --device cuda --parameters 1.3B");
  verb->callback([options, &outcome] {
    outcome.json = options->json;
    outcome.exit_code = validate_verb(*options);
  });
}

}  // namespace lockstep::cli
