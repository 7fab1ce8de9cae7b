// `lockstep launch JOB.yaml`: this process is the agent of a node, and agents of several nodes keep one run alive; or
// it submits the job to a scheduler that starts those agents (launch_on.h).
#include "lockstep/base/error.h"
#include "lockstep/cli/launch_on.h"
#include "lockstep/cli/train.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/spec/job_reader.h"

namespace lockstep::cli {
namespace {

int launch(const TrainOptions& train_options, LaunchOnOptions& on, const std::string& submission) {
  if (!submission.empty()) return start_node(submission);
  if (!on.attach.empty()) return attach_to(on, train_options.json);
  if (!on.cancel.empty()) return cancel_submitted(on, train_options.json);
  if (train_options.job_file.empty()) throw bad_input("launch what?", "name a job file: lockstep launch job.yaml");
  on.nodes = train_options.nodes;
  const YamlNode tree = spec::load_job_tree(train_options.job_file, train_options.overrides);
  if (!scheduler_asked(on, launch_settings(on, tree.find("launch"))).empty()) return launch_job_on(train_options, on);
  return train(train_options);
}

}  // namespace

void add_launch(CLI::App& app, Outcome& outcome) {
  auto options = std::make_shared<TrainOptions>();
  auto on = std::make_shared<LaunchOnOptions>();
  auto submission = std::make_shared<std::string>();
  options->verb = "launch";
  options->launches = true;
  CLI::App* verb = app.add_subcommand("launch", "Trains a job on several nodes, started here or by a scheduler");
  add_train_options(*verb, options, outcome,
                    [on, submission](const TrainOptions& given) { return launch(given, *on, *submission); });
  verb->add_option("--nodes", options->nodes,
                   "Every node, in the same order everywhere: n1,n2 or n[1-4] or 10.0.0.1:29400,...; more than the "
                   "job's cluster has are spare (default: LOCKSTEP_NODES, or the Slurm step's)");
  verb->add_option("--node", options->node, "Which of them this is, from 0 (default: LOCKSTEP_NODE, or by host name)");
  add_launch_on_options(*verb, *on);
  verb->add_option("--submission", *submission, "")->group("");  // how nodes are told what to do
  set_examples(*verb,
               "  lockstep launch job.yaml                                   (this machine alone, as `train` does)\n"
               "  lockstep launch --on slurm job.yaml                        (submits, follows; --dry-run shows what)\n"
               "  lockstep launch --on ssh --hostfile hosts job.yaml\n"
               "  srun --ntasks-per-node=1 --no-kill lockstep launch job.yaml\n"
               "  lockstep launch job.yaml --nodes n1,n2,n3 --node 0         (and so on, on each node; LOCKSTEP_TOKEN "
               "is their secret)");
}

}  // namespace lockstep::cli
