// `lockstep launch JOB.yaml` and `lockstep launch -- COMMAND`: this process is the agent of a node, and agents of
// several nodes keep one run alive; or it submits the job to a scheduler that starts those agents (launch_on.h).
#include "lockstep/base/error.h"
#include "lockstep/cli/launch_command.h"
#include "lockstep/cli/launch_on.h"
#include "lockstep/cli/train.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/spec/job_reader.h"

namespace lockstep::cli {
namespace {

struct Launch {
  TrainOptions train;
  LaunchFlags flags;
  LaunchOnOptions on;
  std::string submission;
};

// Flags that only a command has are refused; those that say where nodes meet are used.
void prepare_job(TrainOptions& options, const LaunchFlags& given) {
  if (options.job_file.empty()) {
    throw bad_input("there is neither a job nor a command", "name a JOB.yaml, or a program after `--`");
  }
  if (const LaunchFlag* const flag = flag_of_commands(given)) {
    throw bad_input(std::string(flag->names).substr(std::string(flag->names).rfind("--")) +
                        " is for commands, and a job is launched",
                    "leave it out: the job's file says it");
  }
  LaunchFlags flags = given;
  fill_from_environment(flags);
  const NodesAsked asked = nodes_asked(flags, options.nodes, options.node);
  options.find_nodes = [asked, &options](const std::string& job) { return find_launch_nodes(asked, options, job); };
}

int launch_a_command(const Launch& launch, const Outcome& outcome) {
  // Without a job file there are only overrides, `launch.time=4h`, and the first of them stands where a file would.
  YamlNode tree = parse_yaml("{}", "the command line");
  std::vector<std::string> overrides = launch.train.overrides;
  if (!launch.train.job_file.empty()) overrides.insert(overrides.begin(), launch.train.job_file);
  for (const std::string& assignment : overrides) apply_override(tree, assignment);
  const schedulers::LaunchSettings settings = launch_settings(launch.on, tree.find("launch"));
  if (scheduler_asked(launch.on, settings).empty()) return launch_command(launch.train, launch.flags, outcome);
  return launch_program_on(program_elsewhere(launch.train, launch.flags, outcome, settings), launch.on, settings);
}

int launch_a_job(Launch& launch) {
  prepare_job(launch.train, launch.flags);
  const YamlNode tree = spec::load_job_tree(launch.train.job_file, launch.train.overrides);
  const std::string on = scheduler_asked(launch.on, launch_settings(launch.on, tree.find("launch")));
  if (on.empty()) return train(launch.train);
  const bool counts = launch.train.nodes.find_first_not_of("0123456789") == std::string::npos;
  if (!launch.flags.nnodes.empty() || (counts && !launch.train.nodes.empty())) {
    throw bad_input("the job's cluster says how many nodes there are", "leave --nnodes out, or give cluster=4x8xH100");
  }
  if (!launch.flags.rdzv_endpoint.empty() || !launch.flags.master_addr.empty()) {
    throw bad_input("the nodes of a scheduler find each other by themselves", "leave --rdzv-endpoint out");
  }
  return launch_job_on(launch.train, launch.on);
}

int run_launch(Launch& launch, const Outcome& outcome) {
  if (!launch.submission.empty()) return start_node(launch.submission);
  if (!launch.on.attach.empty()) return attach_to(launch.on, launch.train.json);
  if (!launch.on.cancel.empty()) return cancel_submitted(launch.on, launch.train.json);
  launch.on.nodes = launch.train.nodes;
  return outcome.command.empty() ? launch_a_job(launch) : launch_a_command(launch, outcome);
}

}  // namespace

void add_launch(CLI::App& app, Outcome& outcome) {
  auto launch = std::make_shared<Launch>();
  const std::shared_ptr<TrainOptions> options(launch, &launch->train);
  options->verb = "launch";
  options->launches = true;
  CLI::App* verb = app.add_subcommand(
      "launch", "Trains a job, or runs any training program, on one node or several, here or through a scheduler");
  add_train_options(*verb, options, outcome,
                    [launch, &outcome](const TrainOptions&) { return run_launch(*launch, outcome); });
  verb->add_option("--nodes", options->nodes,
                   "Every node, in the same order everywhere: n1,n2 or n[1-4] or 10.0.0.1:29400,...; more than the "
                   "job's cluster has are spare (default: LOCKSTEP_NODES, or the Slurm step's); a number is --nnodes");
  verb->add_option("--node", options->node, "Which of them this is, from 0 (default: LOCKSTEP_NODE, or by host name)");
  add_launch_on_options(*verb, launch->on);
  verb->add_option("--submission", launch->submission, "")->group("");  // how nodes are told what to do
  add_launch_flags(*verb, std::shared_ptr<LaunchFlags>(launch, &launch->flags));
  set_examples(*verb,
               "  lockstep launch job.yaml                                   (this machine alone, as `train` does)\n"
               "  lockstep launch --on slurm job.yaml                        (submits, follows; --dry-run shows what)\n"
               "  lockstep launch --on ssh --hostfile hosts job.yaml\n"
               "  srun --ntasks-per-node=1 --no-kill lockstep launch job.yaml\n"
               "  lockstep launch job.yaml --nodes n1,n2,n3 --node 0         (and so on, on each node)\n"
               "  lockstep launch job.yaml --nnodes 2 --rdzv-endpoint n1:29400   (the same on every node)\n"
               "  lockstep launch --nproc 4 -- python3 train.py --lr 1e-4    (any program, in place of torchrun)\n"
               "  lockstep launch --nproc-per-node gpu --max-restarts 5 train.py --lr 1e-4\n"
               "  lockstep launch --on slurm --nnodes 4 --nproc 8 launch.gpus_per_node=8 -- python3 train.py");
}

}  // namespace lockstep::cli
