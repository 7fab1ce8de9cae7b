// `lockstep launch JOB.yaml`: this process is the agent of a node; agents of several nodes keep one run alive.
#include "lockstep/cli/train.h"
#include "lockstep/cli/verbs.h"

namespace lockstep::cli {

void add_launch(CLI::App& app, Outcome& outcome) {
  auto options = std::make_shared<TrainOptions>();
  options->verb = "launch";
  options->launches = true;
  CLI::App* verb = app.add_subcommand("launch", "Trains a job on several nodes: start it once on each");
  add_train_options(*verb, options, outcome);
  verb->add_option("--nodes", options->nodes,
                   "Every node, in the same order everywhere: n1,n2 or n[1-4] or 10.0.0.1:29400,...; more than the "
                   "job's cluster has are spare (default: LOCKSTEP_NODES, or the Slurm step's)");
  verb->add_option("--node", options->node, "Which of them this is, from 0 (default: LOCKSTEP_NODE, or by host name)");
  set_examples(*verb,
               "  lockstep launch job.yaml                                   (this machine alone, as `train` does)\n"
               "  srun --ntasks-per-node=1 --no-kill lockstep launch job.yaml\n"
               "  lockstep launch job.yaml --nodes n1,n2,n3 --node 0         (and so on, on each node; LOCKSTEP_TOKEN "
               "is their secret)");
}

}  // namespace lockstep::cli
