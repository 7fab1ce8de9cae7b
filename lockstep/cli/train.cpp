// `lockstep train JOB.yaml`: plan, run, record; predicted beside measured at the end.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "lockstep/base/counted.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/checkpoint_folder.h"
#include "lockstep/cli/script_facts.h"
#include "lockstep/cli/session.h"
#include "lockstep/cli/show.h"
#include "lockstep/cli/signals.h"
#include "lockstep/cli/tensorboard_follow.h"
#include "lockstep/cli/train.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/elastic/chaos.h"
#include "lockstep/plan/verdict.h"
#include "lockstep/planner/planner.h"
#include "lockstep/planner/smaller_worlds.h"
#include "lockstep/spec/backends.h"

namespace lockstep::cli {
namespace {

// A plan is of one model on one cluster; elsewhere its figures mean nothing.
void check_plan_is_of(const spec::Job& job, const plan::Plan& plan, const std::string& file,
                      const Placement& placement) {
  const auto other = [&](const std::string& has, const std::string& wants) {
    return bad_input(fmt::format("{} is a plan for {}, the job has {}", file, has, wants),
                     "make a plan for this job, or leave --plan out");
  };
  if (!(plan.model == job.model)) {
    const bool same_name = plan.model.name == job.model.name;
    throw other(same_name ? "another " + plan.model.name : plan.model.name,
                same_name ? "one of that name with other sizes" : job.model.name);
  }
  if (plan.best.layout.world() != placement.world) {
    throw other(counted(plan.best.layout.world(), "rank"), fmt::format("{}", placement.world));
  }
  const auto kinds = [](const spec::Cluster& cluster) {
    std::vector<std::string> all;
    for (const spec::NodeGroup& group : cluster.groups) {
      all.push_back(fmt::format("{}x{}x{}", group.nodes, group.devices_per_node, group.device.kind));
    }
    return join(all, ", ");
  };
  if (kinds(plan.cluster) != kinds(job.cluster)) throw other(kinds(plan.cluster), kinds(job.cluster));
}

// What the plan decides and the command line decides otherwise: one of the two is a mistake.
void check_overrides_agree(const spec::Job& job, const plan::Plan& plan, const std::string& file,
                           const std::vector<std::string>& overrides) {
  spec::Job planned = job;
  plan::follow(planned, plan.best);
  const auto refuse = [&](const std::string& key, const std::string& given, const std::string& has) {
    throw bad_input(fmt::format("{} was given and the plan {} has {}", key + "=" + given, file, has),
                    "leave one of them out, or make a plan with it: lockstep plan JOB " + key + "=" + given);
  };
  for (const std::string& word : overrides) {
    const std::string key = word.substr(0, word.find('=')), value = word.substr(std::min(word.size(), key.size() + 1));
    const std::pair<const char*, std::pair<std::int64_t, std::int64_t>> counts[] = {
        {"batch.micro", {job.batch.micro, planned.batch.micro}},
        {"batch.accumulation", {job.batch.accumulation, planned.batch.accumulation}},
        {"batch.sequence_length", {job.batch.sequence_length, planned.batch.sequence_length}}};
    for (const auto& [name, values] : counts) {
      if (key == name && values.first != values.second) refuse(key, value, std::to_string(values.second));
    }
    if (key == "precision" && job.precision != planned.precision) {
      refuse(key, value, spec::to_string(planned.precision));
    }
    plan::Layout given = plan::layout_of(job);
    given.precision = plan.best.layout.precision;  // judged above
    const bool layout = key == "layout" || key.rfind("layout.", 0) == 0;
    if (layout && !(given == plan.best.layout)) refuse(key, value, plan::to_string(plan.best.layout));
  }
}

plan::Plan plan_for(const spec::Job& job, const TrainOptions& options, const Placement& placement) {
  const std::string file = !options.plan_file.empty() ? options.plan_file : job.plan_file;
  if (!file.empty()) {
    plan::Plan plan = plan::load_plan(file);
    check_plan_is_of(job, plan, file, placement);
    check_overrides_agree(job, plan, file, options.overrides);
    return plan;
  }
  const auto profile = planner::find_profile(job.cluster, job.precision, placement, options.profile);
  return planner::make_plan(job, profile ? &*profile : nullptr);
}

// What nobody reads any more is not worth ending a run for; main() looks at what could not be written otherwise.
template <class Print>
void show(const Print& print) {
  try {
    print();
  } catch (const std::system_error&) {
    std::clearerr(stdout);
    if (!nobody_reads_stdout()) throw environment_error("cannot write to standard output", "is the disk full?");
  }
}

// One line a step, at once: a reader may end us after any of them.
void print_step(const nlohmann::json& step) {
  nlohmann::json line = step;
  line.erase("type");
  show([&] { fmt::print("{}\n", line.dump()); });
  std::fflush(stdout);
}

// The same command line again, to be copied.
std::string resume_command(const TrainOptions& options) {
  std::vector<std::string> words = {"lockstep", options.verb, shell_quoted(options.job_file)};
  for (const std::string& assignment : options.overrides) words.push_back(shell_quoted(assignment));
  words.emplace_back("--resume");
  return join(words, " ");
}

bool was_stopped(int exit_code) {
  return exit_code == static_cast<int>(ExitCode::kInterrupted) || exit_code == static_cast<int>(ExitCode::kRetry);
}

void show_end(const SessionResult& outcome, const TrainOptions& options) {
  const bool goes_on = was_stopped(outcome.exit_code) || (outcome.exit_code == 1 && outcome.saved);
  if (!outcome.result.is_null()) show_run_summary(stdout, outcome.result);
  if (outcome.result.is_null() && !goes_on) return;
  fmt::print("\nNext: {}\n", goes_on             ? resume_command(options)
                             : options.no_record ? "lockstep train --help"
                                                 : "lockstep report last");
}

int finish(const SessionResult& outcome, const TrainOptions& options) {
  if (!outcome.error.empty()) fmt::print(stderr, "lockstep: {}\n", outcome.error);
  if (!outcome.is_rank_zero) return outcome.exit_code;  // under a launcher the first rank speaks for all
  nlohmann::json last = outcome.result;
  if (last.is_null()) {
    last = {{"schema", "lockstep.run/1"},
            {"run", outcome.run_id},
            {"status", was_stopped(outcome.exit_code) ? "interrupted" : "failed"},
            {"error", outcome.error}};
  }
  show([&] {
    if (options.json) fmt::print("{}\n", last.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    if (!options.json && !options.report_steps) show_end(outcome, options);
  });
  return outcome.exit_code;
}

// Under a launcher the data may lie where this node cannot see it; there every rank looks for itself.
void check_data_is_there(const spec::Data& data) {
  const auto check = [](const char* key, const std::string& path) {
    if (path.empty() || std::filesystem::exists(path)) return;
    throw environment_error(fmt::format("{}: {} is not there", key, printable(path)), "check the path");
  };
  if (data.kind == spec::DataKind::kPlugin) return;  // its path is what the plugin says it is
  check("data.path", data.path);
  check("data.evaluation_path", data.evaluation_path);
  if (data.tokenizer != "bytes") check("data.tokenizer", data.tokenizer);
  for (const spec::DataSource& source : data.sources) check("data.sources", source.path);
}

// What every rank would stumble over is said once, before any starts or a plan is shown.
void check_before_start(const spec::Job& job, const plan::Candidate& planned, const TrainOptions& options,
                        bool speaks) {
  const std::string& export_folder = options.export_folder;
  if (!job.weights.empty() && !std::filesystem::exists(job.weights)) {
    throw environment_error("weights: " + job.weights + " is not there",
                            "name a Hugging Face folder or a .safetensors file, or leave `weights` out");
  }
  if (!export_folder.empty() && std::filesystem::exists(export_folder) && !std::filesystem::is_empty(export_folder)) {
    throw bad_input("--export " + export_folder + ": it is there already and not an empty folder",
                    "choose another folder or remove this one");
  }
  if (!export_folder.empty() && job.model.script.facts.buffer_bytes > 0 && planned.layout.pp > 1) {
    throw bad_input("--export: the buffers of a pipeline's stages are together in its checkpoints alone",
                    "leave it out and use `lockstep checkpoint export`");
  }
  plan::Run run = plan::run_of(job, planned);
  if (options.general_step) run.executor = plan::Executor::kSharded;
  plan::require_runnable(run);
  for (const plan::Problem& problem : plan::problems(run)) {
    if (speaks) fmt::print(stderr, "lockstep: note: {}; {}\n", problem.text, problem.fix);
  }
}

void note_nodes_here(const spec::Cluster& cluster) {
  std::int64_t nodes = 0;
  for (const spec::NodeGroup& group : cluster.groups) nodes += group.nodes;
  if (nodes < 2) return;
  fmt::print(
      stderr,
      "lockstep: note: all {} nodes of {} run on this machine. To use several, start `lockstep launch JOB --nodes "
      "n1,n2` on each, or once with --on ssh, slurm, ...\n",
      nodes, cluster.name);
}

void settle_resume(const TrainOptions& options, const spec::Job& job, bool launched, SessionOptions& session) {
  session.accept_changes = options.accept_changes;
  session.resume = options.resuming ? elastic::Resume::kAlways : default_resume(job, launched);
  if (options.resume == "auto") session.resume = elastic::Resume::kAuto;
  if (options.resume == "never") session.resume = elastic::Resume::kNever;
  if (options.resume != "auto" && options.resume != "never") session.resume_from = options.resume;
}

}  // namespace

int train(const TrainOptions& options) {
  spec::Job job = spec::load_job(options.job_file, options.overrides);
  complete_model(job);
  const std::string joining = job_digest(job);
  const auto nodes = options.find_nodes ? options.find_nodes(joining) : std::nullopt;
  Placement placement = place(job, options.backend, options.launches, nodes);
  choose_interface(options.interface.empty() && nodes ? nodes->interface : options.interface, placement);
  const plan::Plan plan = plan_for(job, options, placement);
  plan::follow(job, plan.best);
  const bool speaks =
      placement.nodes ? placement.nodes->self == 0 : !placement.launched || placement.launched->rank == 0;
  if (speaks) note_discovery(job.cluster);
  check_before_start(job, plan.best, options, speaks);
  if (!placement.launched && !placement.nodes) check_data_is_there(job.data);
  if (!placement.launched && !placement.nodes) note_nodes_here(job.cluster);
  if (options.no_record && !options.tensorboard.empty())
    throw bad_input("--tensorboard reads what --no-record leaves out", "leave one of them out");
  if (options.dry_run) {
    if (speaks && options.json) fmt::print("{}\n", plan::to_json(plan).dump(1));
    if (speaks && !options.json) show_plan(stdout, job, plan, placement);
    return 0;
  }
  SessionOptions session;
  session.backend = options.backend;
  settle_resume(options, job, placement.launched || options.launches, session);
  session.record = !options.no_record;
  session.chaos = options.chaos;
  const bool only_json = options.json || options.report_steps;  // on stdout
  session.display = only_json ? stderr : stdout;
  if (options.report_steps) session.on_step = print_step;
  session.title = job.name;
  session.joining = joining;
  session.plan = plan;
  if (placement.nodes) {
    const auto profile = planner::find_profile(job.cluster, job.precision, placement, options.profile);
    session.smaller = planner::smaller_worlds(job, plan, profile ? &*profile : nullptr);
  }
  if (!options.export_folder.empty()) {
    session.verb_options.export_folder = std::filesystem::absolute(options.export_folder).string();
  }
  session.verb_options.general_step = options.general_step;
  survive_closed_pipes();
  end_with_parent();
  if (speaks && !only_json) show([&] { show_plan(stdout, job, plan, placement); });
  TensorBoardFollower board(options.tensorboard);
  if (speaks && !options.tensorboard.empty()) session.on_run = [&](const std::string& run) { board.start(run); };
  const SessionResult outcome = run_session(job, placement, session);
  board.finish();
  return finish(outcome, options);
}

void add_train_options(CLI::App& verb, const std::shared_ptr<TrainOptions>& shared, Outcome& outcome,
                       std::function<int(const TrainOptions&)> run) {
  TrainOptions& options = *shared;
  verb.add_option("job", options.job_file, "Job file (docs/reference/job-file.md)")->required(!options.launches);
  verb.add_option("overrides", options.overrides, "key=value for any field of the file: batch.micro=8");
  verb.add_option("--plan", options.plan_file, "Execute this Plan instead of making one");
  add_observation_switch(verb);
  verb.add_option("--profile", options.profile, "Profile that prices the plan (default: this machine's)")
      ->envname("LOCKSTEP_PROFILE");
  verb.add_option("--backend", options.backend, "Communicator: local, tcp, gloo, mpi, nccl")
      ->envname("LOCKSTEP_BACKEND")
      ->check(CLI::IsMember(spec::backend_names()));
  verb.add_option("--interface", options.interface,
                  "Network interface for all that leaves this process: agents, store and communicators (default: by "
                  "route to the other nodes; loopback on one machine)")
      ->envname("LOCKSTEP_INTERFACE");
  CLI::Option* resume = verb.add_option("--resume", options.resume,
                                        "Go on from the last checkpoint of this job, or of the folder named; auto: "
                                        "where there is one (the default under launchers, see "
                                        "docs/reference/resume-and-health.md); never")
                            ->expected(0, 1);
  verb.add_flag("--accept-changes", options.accept_changes,
                "Resume although seed, data or shuffling differ from the checkpoint's: other samples come");
  verb.add_option("--export", options.export_folder,
                  "At the end write the weights as a Hugging Face folder that transformers loads");
  verb.add_option("--tensorboard", options.tensorboard,
                  "Write TensorBoard's event files into this folder while it trains (docs/reference/export.md)");
  verb.add_option("--chaos", options.chaos,
                  "Faults on purpose, separated by `;` (docs/reference/chaos.md):\n" + elastic::chaos_help());
  verb.add_flag("--dry-run", options.dry_run, "Show the plan and stop; of `launch --on` the submission");
  verb.add_flag("--no-record", options.no_record, "Do not write to the run store");
  verb.add_flag(
      "--general-step", options.general_step,
      "Train through libtorch's autograd also where a faster step of our own would do (docs/reference/gpu.md)");
  verb.add_flag("--report-steps", options.report_steps,
                "Every step as a JSON line on stdout (step, seconds, tokens_per_second); all else goes to stderr");
  verb.add_flag("--json", options.json, "Last line of stdout is JSON (lockstep.run/1); all else goes to stderr");
  verb.callback([shared, resume, &outcome, run = std::move(run)] {
    outcome.json = shared->json;
    shared->resuming = resume->count() > 0;
    if (shared->resume.find('=') != std::string::npos) {  // `--resume steps=99`: an override, not a folder
      shared->overrides.push_back(std::exchange(shared->resume, ""));
    }
    outcome.exit_code = run(*shared);
  });
}

void add_train(CLI::App& app, Outcome& outcome) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* verb = app.add_subcommand("train", "Trains a job and records the run");
  add_train_options(*verb, options, outcome, train);
  set_examples(*verb,
               "  lockstep train specs/jobs/mnist-cnn.yaml\n"
               "  lockstep train job.yaml batch.micro=8 optimizer.learning_rate=1e-3\n"
               "  lockstep train job.yaml --chaos \"kill rank=2 step=20; stop rank=1 for=15s\"\n"
               "  lockstep train job.yaml --resume auto     (starts or goes on: one command line for every restart)\n"
               "  mpirun -np 4 lockstep train job.yaml      (also srun, torchrun: rank and world come from them)");
}

}  // namespace lockstep::cli
