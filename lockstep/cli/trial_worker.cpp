// `lockstep trial-worker FOLDER LANE`: measures the trials of one lane of a study, started by a scheduler. Hidden.
#include "lockstep/cli/tune_array.h"
#include "lockstep/cli/verbs.h"

namespace lockstep::cli {

void add_trial_worker(CLI::App& app, Outcome& outcome) {
  CLI::App* verb = app.add_subcommand("trial-worker", "")->group("");
  auto folder = std::make_shared<std::string>();
  auto lane = std::make_shared<std::size_t>(0);
  verb->add_option("folder", *folder)->required();
  verb->add_option("lane", *lane)->required();
  verb->callback([folder, lane, &outcome] { outcome.exit_code = run_trial_worker(*folder, *lane); });
}

}  // namespace lockstep::cli
