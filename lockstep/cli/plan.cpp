// `lockstep plan`: the best layout of a model on a cluster, with its price and the reasons; clusters compared; scaling.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/plan_request.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/planner/compare.h"
#include "lockstep/planner/explain/explain.h"
#include "lockstep/planner/export/export.h"
#include "lockstep/report/plan_text.h"
#include "lockstep/telemetry/progress.h"

namespace lockstep::cli {
namespace {

constexpr double kSecondsPerDay = 86400;

struct PlanOptions {
  PlanFlags flags;
  std::string compare, scaling, output, export_kind;
  bool weak = false, what_if = true, passes = false, json = false;
};

// The command as it was asked, with `more` behind it.
std::string again(const PlanOptions& options, const std::string& more) {
  std::vector<std::string> words{"lockstep plan"};
  if (!options.flags.job_file.empty()) words.push_back(options.flags.job_file);
  if (!options.flags.model.empty()) words.push_back("--model " + options.flags.model);
  if (!options.flags.cluster.empty()) words.push_back("--cluster " + options.flags.cluster);
  words.push_back(more);
  return join(words, " ");
}

std::string next_command(const PlanOptions& options, const planner::Explained& explained) {
  if (explained.request.tokens <= 0) {
    const bool tokens = explained.request.model.is_language_model();
    return again(options, fmt::format("--tokens {}   (days and dollars)", tokens ? "300B" : "100M"));
  }
  if (explained.request.cluster.groups.size() == 1 && options.scaling.empty()) {
    const std::int64_t node = explained.request.cluster.groups.front().devices_per_node;
    const std::int64_t most = std::max(32 * node, 4 * explained.request.cluster.devices());
    return again(options, fmt::format("--scaling {},{},...,{}", node, 2 * node, most));
  }
  return again(options, "--output plan.json");
}

// --output of a question whose answer is not a plan.
void save(const nlohmann::json& document, const std::string& path) {
  if (!path.empty()) write_file_atomically(path, document.dump(1) + "\n");
}

int exit_code_if(bool answer) { return static_cast<int>(answer ? ExitCode::kOk : ExitCode::kAnswerIsNo); }

int show_comparison(const PlanOptions& options) {
  const planner::SearchRequest base = request_of(options.flags);
  std::vector<planner::SearchRequest> requests;
  for (const std::string& name : split(options.compare, ',')) {
    requests.push_back(request_on(base, std::string(trim(name)), options.flags));
  }
  const planner::Comparison comparison = planner::compare(std::move(requests));
  save(planner::to_json(comparison), options.output);
  if (options.json) {
    fmt::print("{}\n", planner::to_json(comparison).dump(1));
  } else {
    fmt::print("{}", report::to_text(comparison, telemetry::detect_style(stdout)));
  }
  const bool any = std::any_of(comparison.options.begin(), comparison.options.end(), [](const planner::Option& option) {
    return option.best && option.meets_deadline.value_or(true);
  });
  if (!any) fmt::print(stderr, "lockstep: {}\n", comparison.verdict);
  return exit_code_if(any);
}

int show_scaling(const PlanOptions& options) {
  const planner::Scaling scaling =
      planner::scale(request_of(options.flags), parse_sizes(options.scaling), options.weak);
  save(planner::to_json(scaling), options.output);
  if (options.json) {
    fmt::print("{}\n", planner::to_json(scaling).dump(1));
  } else {
    fmt::print("{}", report::to_text(scaling, telemetry::detect_style(stdout)));
  }
  const bool any = std::any_of(scaling.points.begin(), scaling.points.end(),
                               [](const planner::ScalingPoint& point) { return point.best.has_value(); });
  return exit_code_if(any);
}

// The exit code: the answer is no where even the best plan ends after the deadline.
int judge_deadline(const planner::Explained& explained) {
  const double deadline = explained.request.deadline_seconds;
  const auto& cost = explained.plan.best.cost;
  if (deadline <= 0 || !cost || cost->days * kSecondsPerDay <= deadline) return exit_code_if(true);
  std::fflush(stdout);  // the line comes after the page where both go to one terminal or file
  fmt::print(stderr, "lockstep: the best plan takes {:.4g} days, the deadline is {:.4g} days\n", cost->days,
             deadline / kSecondsPerDay);
  return exit_code_if(false);
}

// The plan as the files of a framework, in the folder --output.
int write_export(const PlanOptions& options) {
  namespace fs = std::filesystem;
  const planner::PlanExport kind = planner::parse_plan_export(options.export_kind);
  planner::SearchRequest request = request_of(options.flags);
  planner::keep_to_export(request, kind);
  const planner::Explained explained = planner::explain(request, {.what_ifs = false});
  const fs::path folder = options.output.empty() ? "." : options.output;
  fs::create_directories(folder);
  nlohmann::json written = nlohmann::json::array();
  for (const planner::ExportedFile& file : planner::export_plan(explained.request, explained.plan.best, kind)) {
    const fs::path path = folder / file.name;
    write_file_atomically(path, file.text);
    if (file.executable) fs::permissions(path, fs::perms::owner_exec, fs::perm_options::add);
    written.push_back(path.string());
  }
  if (options.json) {
    nlohmann::json document = planner::to_json(explained);
    document["exported"] = written;
    fmt::print("{}\n", document.dump(1));
  } else {
    fmt::print("{}: {}\n", plan::to_string(explained.plan.best.layout), fmt::join(written, ", "));
  }
  return judge_deadline(explained);
}

int show_plan_of(const PlanOptions& options) {
  if (!options.export_kind.empty()) return write_export(options);
  const planner::Explained explained = planner::explain(request_of(options.flags), {.what_ifs = options.what_if});
  const std::vector<std::string> notices = notices_of(options.flags, explained.request, explained.plan.best);
  nlohmann::json document = plan::to_json(explained.plan);
  document["sensitivity"] = planner::to_json(explained.sensitivity);
  save(document, options.output);
  if (options.json) {
    for (const std::string& notice : notices) fmt::print(stderr, "lockstep: note: {}\n", notice);
    fmt::print("{}\n", planner::to_json(explained).dump(1));
    return judge_deadline(explained);
  }
  const report::PlanTextOptions page{.style = telemetry::detect_style(stdout),
                                     .passes = options.passes,
                                     .pareto = options.flags.objective == "pareto",
                                     .notices = notices};
  fmt::print("{}\nNext: {}\n", report::to_text(explained, page), next_command(options, explained));
  return judge_deadline(explained);
}

int plan_verb(PlanOptions& options) {
  if (!options.flags.job_file.empty() && options.flags.job_file.find('=') != std::string::npos) {
    throw bad_input(fmt::format("`{}` overrides a job file, and there is none", printable(options.flags.job_file)),
                    "name the job file first, or use --model and --cluster");
  }
  if (!options.export_kind.empty() && !(options.compare.empty() && options.scaling.empty())) {
    throw bad_input("--export writes one plan, --compare and --scaling make many", "use it without them");
  }
  if (!options.compare.empty() && !options.scaling.empty()) {
    throw bad_input("--compare and --scaling answer different questions", "use one at a time");
  }
  if (!options.compare.empty()) {
    // Every cluster of the list is loaded in turn, --cluster before them; the first stands in where it is absent.
    const std::vector<std::string> listed = split(options.compare, ',');
    const bool known = std::any_of(listed.begin(), listed.end(),
                                   [&](const std::string& name) { return trim(name) == options.flags.cluster; });
    if (!options.flags.cluster.empty() && !known) options.compare = options.flags.cluster + "," + options.compare;
    if (options.flags.cluster.empty() && options.flags.job_file.empty()) options.flags.cluster = trim(listed.front());
    return show_comparison(options);
  }
  return options.scaling.empty() ? show_plan_of(options) : show_scaling(options);
}

// "" for a number that may be one, as CLI11 wants it; whether it is whole, the conversion says.
std::string above_zero(const std::string& text) {
  const bool zero = text.find_first_not_of("0+") == std::string::npos;
  return zero || text.starts_with('-') ? fmt::format("`{}` is not above 0", printable(text)) : "";
}

void add_question_flags(CLI::App& verb, PlanFlags& flags) {
  verb.add_option("job", flags.job_file, "Job file, instead of --model and --cluster");
  verb.add_option("overrides", flags.overrides,
                  "key=value for any field of the job file; batch.micro and batch.accumulation are then kept");
  verb.add_option("--model", flags.model, "Preset (llama2-13b), YAML file, or Hugging Face config.json or its folder");
  verb.add_option("--cluster", flags.cluster, "NODESxGPUSxKIND (4x8xH100), a kind, or a YAML file");
  verb.add_option("--seq", flags.sequence_length, "Sequence length in tokens (default: the model's)")
      ->check(above_zero);
  verb.add_option("--global-batch", flags.global_batch,
                  "Global batch in SEQUENCES (1024), or in tokens with the unit (4Mtok); default: the model's usual");
  verb.add_option("--micro", flags.micro, "Micro-batch: sequences per data rank and micro-step")->check(above_zero);
  verb.add_option("--layout", flags.layout, "Price this layout: dp=4,shard=8,tp=1 (absent axes are 1)");
  verb.add_option("--precision", flags.precision,
                  "Precisions to search: bf16,fp8 (default: bf16). `train` has fp8 on one GPU, for dense Llamas");
  verb.add_option("--fix", flags.fix, "Fix parts of the layout: tp=8,recompute=full,micro=2");
  verb.add_option("--at-most", flags.at_most, "Bound them: tp=4,pp=8");
  verb.add_option("--stack", flags.stack,
                  "Who will run it: lockstep, ddp, fsdp, deepspeed, megatron, nemo, torchtitan, nanotron. Only layouts "
                  "that it can run, priced by runs of it where there are some");
  add_observation_switch(verb);
  verb.add_option("--profile", flags.profile,
                  "Profile by name or file (default: the generic one of the GPU; on one GPU our engine's)")
      ->envname("LOCKSTEP_PROFILE");
}

void add_goal_flags(CLI::App& verb, PlanOptions& options) {
  PlanFlags& flags = options.flags;
  verb.add_option("--tokens", flags.tokens,
                  "Tokens (samples for images) of the whole job: 300B; adds days and dollars");
  verb.add_option("--deadline", flags.deadline, "The job must end within: 14d, 36h");
  verb.add_option("--objective", flags.objective, "What is best")
      ->check(CLI::IsMember({"throughput", "goodput", "dollars", "deadline", "pareto"}))
      ->capture_default_str();
  verb.add_option("--max-lost", flags.max_lost, "Most work that a failure may cost: 30m (default)");
  verb.add_option("--compare", options.compare,
                  "Decision matrix of clusters, --cluster among them: 4x8xA100,16x8xA10G");
  verb.add_option("--scaling", options.scaling, "Throughput and efficiency over GPU counts: 8,16,...,1024");
  verb.add_flag("--weak", options.weak, "--scaling: the batch grows with the GPUs (default: the same batch)");
}

}  // namespace

void add_plan(CLI::App& app, Outcome& outcome) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* verb = app.add_subcommand("plan", "Finds the best layout for a model on a cluster and explains it");
  add_question_flags(*verb, options->flags);
  add_goal_flags(*verb, *options);
  verb->add_flag("--what-if,!--no-what-if", options->what_if, "What one change would bring (default: on)");
  verb->add_flag("--passes", options->passes, "The passes of the search with their times");
  verb->add_option("--switch-off", options->flags.switch_off, "Switch a pass off that only saves time: floor, outgrow")
      ->delimiter(',');
  verb->add_option("--export", options->export_kind,
                   "Write the plan as job, torchrun, deepspeed, megatron, nemo or torchtitan files into the folder "
                   "--output (default: this one)");
  verb->add_option("-o,--output", options->output, "Write the JSON to this file (a plan as `train --plan` reads it)");
  verb->add_flag("--json", options->json, "JSON on stdout (lockstep.plan/1, comparison/1, scaling/1)");
  set_examples(*verb,
               "  lockstep plan --model llama2-13b --cluster 4x8xH100\n"
               "  lockstep plan --model llama2-70b --cluster 32x8xH100 --tokens 2T --objective goodput\n"
               "  lockstep plan --model llama2-13b --cluster 4x8xH100 --layout dp=4,shard=8,recompute=full --micro 2\n"
               "  lockstep plan --model llama2-13b --compare 4x8xA100,16x8xA10G --tokens 20B --deadline 14d\n"
               "  lockstep plan --model llama2-7b --cluster 1x8xH100 --scaling 8,16,...,1024\n"
               "  lockstep plan --model gpt-10b --cluster cluster.yaml --fix tp=8 --at-most pp=4 --json\n"
               "  lockstep plan --model llama2-7b --cluster 2x8xH100 --stack fsdp --export torchrun -o run");
  verb->callback([options, &outcome] {
    outcome.json = options->json;
    outcome.exit_code = plan_verb(*options);
  });
}

}  // namespace lockstep::cli
