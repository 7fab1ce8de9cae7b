// `lockstep launch JOB.yaml` and `lockstep launch -- COMMAND`: this process is the agent of a node; agents of several
// nodes keep one run alive.
#include "lockstep/base/error.h"
#include "lockstep/cli/launch_command.h"
#include "lockstep/cli/train.h"
#include "lockstep/cli/verbs.h"

namespace lockstep::cli {
namespace {

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

}  // namespace

void add_launch(CLI::App& app, Outcome& outcome) {
  auto options = std::make_shared<TrainOptions>();
  auto flags = std::make_shared<LaunchFlags>();
  options->verb = "launch";
  options->launches = true;
  CLI::App* verb = app.add_subcommand("launch", "Trains a job, or runs any training program, on one node or several");
  add_train_options(*verb, options, outcome, [options, flags, &outcome]() -> std::optional<int> {
    if (!outcome.command.empty()) return launch_command(*options, *flags, outcome);
    prepare_job(*options, *flags);
    return std::nullopt;
  });
  verb->get_option("job")->required(false);
  verb->add_option("--nodes", options->nodes,
                   "Every node, in the same order everywhere: n1,n2 or n[1-4] or 10.0.0.1:29400,...; more than the "
                   "job's cluster has are spare (default: LOCKSTEP_NODES, or the Slurm step's); a number is --nnodes");
  verb->add_option("--node", options->node, "Which of them this is, from 0 (default: LOCKSTEP_NODE, or by host name)");
  add_launch_flags(*verb, flags);
  set_examples(*verb,
               "  lockstep launch job.yaml                                   (this machine alone, as `train` does)\n"
               "  srun --ntasks-per-node=1 --no-kill lockstep launch job.yaml\n"
               "  lockstep launch job.yaml --nodes n1,n2,n3 --node 0         (and so on, on each node)\n"
               "  lockstep launch job.yaml --nnodes 2 --rdzv-endpoint n1:29400   (the same on every node)\n"
               "  lockstep launch --nproc 4 -- python3 train.py --lr 1e-4    (any program, in place of torchrun)\n"
               "  lockstep launch --nproc-per-node gpu --max-restarts 5 train.py --lr 1e-4");
}

}  // namespace lockstep::cli
