// `lockstep simulate`: chooses among the questions of simulate.h.
#include "lockstep/cli/simulate.h"

#include <fmt/format.h>

#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/cli/verbs.h"

namespace lockstep::cli {
namespace {

// The first flag of a question that was given; empty: none was.
std::string given_flag(const CLI::App& verb, const SimulateQuestion& question) {
  for (const CLI::Option* option : verb.get_options()) {
    if (option->get_group() == question.heading && option->count() > 0) return option->get_name();
  }
  return "";
}

const SimulateQuestion& chosen(const CLI::App& verb, const std::vector<SimulateQuestion>& questions) {
  const SimulateQuestion* found = nullptr;
  std::string by;
  for (const SimulateQuestion& question : questions) {
    const std::string flag = given_flag(verb, question);
    if (flag.empty()) continue;
    if (found != nullptr)
      throw bad_input(fmt::format("{} and {} ask different questions", by, flag), "give one of them");
    found = &question;
    by = flag;
  }
  return found != nullptr ? *found : questions.front();
}

}  // namespace

void add_simulate(CLI::App& app, Outcome& outcome) {
  auto common = std::make_shared<SimulateCommon>();
  CLI::App* verb = app.add_subcommand(
      "simulate", "Plays a plan: its steps as events, or weeks of failures and what each choice is worth");
  verb->add_option("plan", common->plan,
                   "Plan file (lockstep plan ... --output FILE): nodes, replicas, cadence, prices");
  verb->add_option("--seed", common->seed, "Of the random numbers");
  verb->add_flag("--json", common->json,
                 "JSON on stdout (lockstep.simulation/1, lockstep.goodput/1, lockstep.replay/1)");
  // Without a flag of its own the first is asked.
  const std::vector<SimulateQuestion> questions = {add_step_question(*verb), add_failure_question(*verb),
                                                   add_replay_question(*verb)};
  set_examples(*verb,
               "  lockstep plan --model llama2-13b --cluster 4x8xH100 --tokens 300B --output plan.json\n"
               "  lockstep simulate plan.json\n"
               "  lockstep simulate plan.json --inject slow-rank=17,1.3x --record\n"
               "  lockstep simulate plan.json --what-if nic=800Gb/s\n"
               "  lockstep simulate plan.json --days 30\n"
               "  lockstep simulate --failures llama3 --nodes 2048 --days 54 --spares 16\n"
               "  lockstep simulate --failures faults.json --trace-nodes 400 --nodes 1250 --days 90 --json\n"
               "  lockstep simulate --replay operations.csv.gz --mesh dp=4,pp=4,tp=4");
  verb->callback([common, questions, verb, &outcome] {
    outcome.json = common->json;
    outcome.exit_code = chosen(*verb, questions).answer(*common);
  });
}

}  // namespace lockstep::cli
