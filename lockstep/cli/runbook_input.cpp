#include "lockstep/cli/runbook_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/cli/goodput_question.h"
#include "lockstep/cli/plan_request.h"
#include "lockstep/cli/script_facts.h"
#include "lockstep/elastic/chaos.h"
#include "lockstep/plan/run.h"
#include "lockstep/planner/explain/explain.h"
#include "lockstep/planner/lost_work.h"
#include "lockstep/planner/profile_source.h"
#include "lockstep/planner/question.h"
#include "lockstep/report/runbook/commands.h"
#include "lockstep/report/runbook/facts.h"
#include "lockstep/schedulers/scheduler.h"
#include "lockstep/spec/job_reader.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using report::RunbookInput;

constexpr double kSecondsPerDay = 86400, kUsualDays = 30;
constexpr int kSamples = 400;
constexpr std::int64_t kLargestWorld = 16384;
constexpr const char* kPlanFile = "plan.json";
constexpr const char* kJobFile = "job.yaml";

bool is_plan(const std::string& source) { return fs::path(source).extension() == ".json"; }

// A job that trains the plan of a file, for somebody to put the data into. Of presets alone: what the plan says of the
// model and the cluster must be what their names say.
std::string job_text_of(const plan::Plan& plan, double tokens) {
  const auto is_known = [](const auto& value, const auto& load) {
    try {
      return load(value.name) == value;
    } catch (const UserError&) {
      return false;
    }
  };
  if (!plan.model.is_language_model() || !is_known(plan.model, spec::load_model) ||
      !is_known(plan.cluster, spec::load_cluster)) {
    throw bad_input(fmt::format("a job for {} on {} cannot be written from the plan alone", printable(plan.model.name),
                                printable(plan.cluster.name)),
                    "name the job that trains it: --job JOB.yaml");
  }
  const plan::BatchPlan& batch = plan.best.batch;
  return fmt::format(
      "model: {}\ncluster: {}\ndata: {{kind: tokens, path: /shared/data/tokens}}\n"
      "batch: {{micro: {}, global: {}, sequence_length: {}}}\ncheckpoint: {{directory: /shared/checkpoints/{}}}\n{}\n",
      plan.model.name, plan.cluster.name, batch.micro, batch.global_sequences, batch.sequence_length, plan.model.name,
      tokens > 0 ? fmt::format("tokens: {:.0f}", tokens) : "steps: 1000");
}

// The length of the job that the plan's cost is for.
double tokens_of(const plan::Candidate& best) {
  if (!best.cost || !best.prediction) return 0;
  const plan::Interval& rate =
      best.batch.sequence_length > 0 ? best.prediction->tokens_per_second : best.prediction->samples_per_second;
  const double goodput = best.checkpoint ? best.checkpoint->goodput : 1.0;
  return best.cost->days * kSecondsPerDay * goodput * rate.expected;
}

void read_job_file(const std::string& file, const std::vector<std::string>& overrides, RunbookInput& input) {
  input.job = spec::load_job(file, overrides);
  complete_model(input.job);
  input.job_file = file;
  input.overrides = overrides;
  const YamlNode tree = spec::load_job_tree(file, overrides);
  input.launch = schedulers::read_settings(tree.find("launch"));
}

planner::SearchRequest request_of_plan(const RunbookFlags& flags, const RunbookInput& input) {
  const plan::Candidate& best = input.planned.best;
  const planner::Ranks ranks = planner::ranks_here(input.planned.cluster, 0, "", best.layout.world());
  const cost::Profile profile =
      planner::require_profile(input.planned.cluster, best.layout.precision, ranks, flags.profile);
  planner::SearchRequest request;
  request.model = input.planned.model;
  request.cluster = input.planned.cluster;
  request.profile = profile;
  request.precisions = {best.layout.precision};
  request.global_sequences = best.batch.global_sequences;
  request.sequence_length = best.batch.sequence_length;
  request.tokens = input.tokens;
  request.max_lost_seconds = input.job.checkpoint.max_lost_seconds;
  request.optimizer = input.job.optimizer.kind;
  request.lora = input.job.lora;
  return request;
}

// A plan that is there, and its job: named, or written here.
planner::SearchRequest take_plan(const RunbookFlags& flags, const std::string& file, RunbookInput& input) {
  input.plan = read_json_file(file);
  input.planned = plan::read_plan(input.plan, file);
  input.plan_file = file;
  input.tokens = tokens_of(input.planned.best);
  if (input.job_file.empty()) {
    if (!flags.overrides.empty()) {
      throw bad_input(fmt::format("`{}` overrides a job file, and a plan is given", printable(flags.overrides.front())),
                      "add --job JOB.yaml");
    }
    input.job_text = job_text_of(input.planned, input.tokens);
    input.job = spec::parse_job(input.job_text, kJobFile);
    input.job_file = kJobFile;
  }
  if (!input.planned.best.prediction) {
    throw bad_input("has no prediction in it", "calibrate this machine, then plan again", {file});
  }
  plan::follow(input.job, input.planned.best);
  planner::SearchRequest request = request_of_plan(flags, input);
  if (input.job.checkpoint.every_seconds == spec::CheckpointPolicy::kAuto) {
    if (const auto problem = planner::find_lost_work_problem(request, input.planned.best)) throw *problem;
  }
  return request;
}

planner::SearchRequest take_job(const RunbookFlags& flags, RunbookInput& input) {
  read_job_file(flags.source, flags.overrides, input);
  if (!input.job.plan_file.empty()) return take_plan(flags, input.job.plan_file, input);
  PlanFlags asked;
  asked.job_file = flags.source;
  asked.overrides = flags.overrides;
  asked.profile = flags.profile;
  const planner::Explained explained = planner::explain(request_of(asked));
  if (!explained.plan.best.prediction) {
    throw bad_input("its plan has no prediction", "calibrate this machine first", {flags.source});
  }
  input.plan = planner::to_json(explained);
  input.planned = explained.plan;
  input.plan_file = kPlanFile;
  input.makes_plan = true;
  input.tokens = explained.request.tokens;
  plan::follow(input.job, input.planned.best);
  return explained.request;
}

std::string scheduler_of(const RunbookFlags& flags, const RunbookInput& input) {
  const bool several = input.question.run.nodes > 1;
  std::string name = flags.scheduler.empty() ? input.launch.on : flags.scheduler;
  if (name.empty()) name = several ? "slurm" : report::kHere;
  if (name == report::kHere && several) {
    throw bad_input(fmt::format("the plan has {} nodes, and `local` is one machine", input.question.run.nodes),
                    fmt::format("choose one of {}", join(schedulers::scheduler_names(), ", ")));
  }
  return name;
}

// A quarter of the GPUs to four times as many, in whole nodes or halves of one.
std::vector<std::int64_t> sizes_around(const spec::Cluster& cluster, std::int64_t world) {
  if (cluster.groups.size() != 1) return {};
  const std::int64_t per_node = cluster.groups.front().devices_per_node;
  std::vector<std::int64_t> sizes;
  for (const std::int64_t size : {world / 4, world / 2, world, 2 * world, 4 * world}) {
    const bool whole = size >= per_node ? size % per_node == 0 : size > 0 && per_node % size == 0;
    if (whole && size <= std::max(world, kLargestWorld)) sizes.push_back(size);
  }
  return sizes;
}

void play_failures(RunbookInput& input) {
  sim::GoodputQuestion& question = input.question;
  const plan::Candidate& best = input.planned.best;
  sim::RunOnNodes& run = question.run;
  run.spares = static_cast<int>(input.launch.spares);
  run.from_memory = report::survives_in_memory(input);
  if (const auto cadence = report::cadence_of_run(input)) run.interval_seconds = cadence->interval_seconds;
  run.when_short = input.smaller.plans.empty() ? sim::WhenShort::kWait : sim::WhenShort::kShrink;
  question.usd_per_hour += question.usd_per_node_hour * run.spares;
  question.seconds = best.cost ? best.cost->days * kSecondsPerDay : kUsualDays * kSecondsPerDay;
  question.samples = kSamples;
  question.threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const double rate = failures_per_1000_node_days(input.planned);
  if (rate <= 0) return;
  const auto source = sim::faults_in_bursts(sim::usual_bursts(rate / 1000.0 / kSecondsPerDay));
  input.goodput = sim::compare_choices(*source, question);
}

nlohmann::json read_validation(const std::string& file) {
  if (file.empty()) return nullptr;
  nlohmann::json document = read_json_file(file);
  if (!document.is_object() || document.value("schema", "") != "lockstep.validation/1") {
    throw bad_input("is no validation", "give what `lockstep validate JOB --output FILE.json` wrote", {file});
  }
  return document;
}

}  // namespace

report::RunbookInput runbook_input(const RunbookFlags& flags) {
  RunbookInput input;
  if (!is_plan(flags.source) && !flags.job_file.empty()) {
    throw bad_input("--job names the job of a plan, and a job is given already", "leave it out", {"--job"});
  }
  if (!flags.job_file.empty()) read_job_file(flags.job_file, flags.overrides, input);
  planner::SearchRequest request =
      is_plan(flags.source) ? take_plan(flags, flags.source, input) : take_job(flags, input);
  input.question = goodput_question(input.planned);
  input.scheduler = scheduler_of(flags, input);
  input.smaller = planner::smaller_worlds(input.job, input.planned, &request.profile);
  request.constraints = {};  // those of the plan; the others are free
  if (request.profile.fitted) {
    input.strategies = planner::compare_strategies(request, input.planned.best);
    const std::vector<std::int64_t> sizes = sizes_around(input.planned.cluster, input.planned.best.layout.world());
    if (!sizes.empty()) input.scaling = planner::scale(request, sizes, false);
  }
  play_failures(input);
  for (const report::Drill& drill : report::drills_of(input)) {
    elastic::parse_chaos(drill.chaos,
                         static_cast<int>(input.planned.best.layout.world()));  // throws what cannot happen
  }
  input.validation = read_validation(flags.validation);
  input.directory = fs::current_path().string();
  input.version = LOCKSTEP_VERSION;
  input.made_at = unix_seconds();
  return input;
}

}  // namespace lockstep::cli
