#include "lockstep/report/runbook/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/report/runbook/facts.h"

namespace lockstep::report {
namespace {

constexpr int kDrillSteps = 40, kFaultStep = 15;

bool is_here(const RunbookInput& input) { return input.scheduler == kHere; }
bool takes_hosts(const RunbookInput& input) { return input.scheduler == "ssh" || input.scheduler == "mpi"; }
bool wants_image(const RunbookInput& input) {
  return (input.scheduler == "kubernetes" || input.scheduler == "kubeflow") && input.launch.image.empty();
}

std::string job_words(const RunbookInput& input) {
  std::vector<std::string> words{shell_quoted(input.job_file)};
  for (const std::string& override : input.overrides) words.push_back(shell_quoted(override));
  return join(words, " ");
}

std::string where(const RunbookInput& input) {
  if (is_here(input)) return "";
  return fmt::format(" --on {}{}", input.scheduler, takes_hosts(input) ? " --hostfile hosts" : "");
}

// `lockstep launch` of the job with `more` behind it.
std::string launch(const RunbookInput& input, const std::string& more) {
  return fmt::format("lockstep launch{} {} --plan {}{}{}", where(input), job_words(input),
                     shell_quoted(input.plan_file), wants_image(input) ? " launch.image=IMAGE" : "",
                     more.empty() ? "" : " " + more);
}

std::string detached(const RunbookInput& input) { return is_here(input) || takes_hosts(input) ? "" : "--detach"; }

// Ranks of the last node: "24,25,26,27,28,29,30,31".
std::string last_node(const RunbookInput& input) {
  const std::int64_t world = input.planned.best.layout.world();
  const std::int64_t per_node = input.planned.cluster.groups.front().devices_per_node;
  std::vector<std::string> ranks;
  for (std::int64_t rank = std::max<std::int64_t>(0, world - per_node); rank < world; ++rank) {
    ranks.push_back(std::to_string(rank));
  }
  return join(ranks, ",");
}

using Commands = std::vector<RunbookCommand>;

void add_before(const RunbookInput& input, Commands& commands) {
  if (input.makes_plan) {
    commands.push_back({CommandGroup::kPlan,
                        fmt::format("lockstep plan {} --output {}", job_words(input), shell_quoted(input.plan_file)),
                        "the plan that this runbook is about, as a file"});
  }
  if (is_here(input)) {
    commands.push_back({CommandGroup::kCheck, "lockstep doctor", "libraries, devices and limits of this machine"});
  } else {
    commands.push_back({CommandGroup::kCheck, fmt::format("lockstep doctor {}{}", job_words(input), where(input)),
                        "every node and the links between them"});
  }
  commands.push_back({CommandGroup::kCheck, fmt::format("lockstep health {}", shell_quoted(input.job_file)),
                      "disks, memory, links and GPUs of the node it is typed on"});
}

void add_running(const RunbookInput& input, Commands& commands) {
  commands.push_back({CommandGroup::kLaunch, launch(input, "--dry-run"),
                      is_here(input) ? "shows the plan and stops" : "shows what would be submitted"});
  commands.push_back({CommandGroup::kLaunch, launch(input, detached(input)),
                      is_here(input) ? "trains" : "submits; the run is recorded under one id"});
  if (!is_here(input) && !takes_hosts(input)) {
    commands.push_back({CommandGroup::kWatch, "lockstep launch --attach last", "follows what the run prints"});
  }
  commands.push_back({CommandGroup::kWatch, "lockstep watch last", "curves, ranks and incidents in a terminal"});
  commands.push_back({CommandGroup::kWatch, "lockstep serve", "the same in a browser, on this machine's port 8642"});
  commands.push_back({CommandGroup::kWatch, "lockstep diagnose last", "what costs time, and what to do about it"});
  commands.push_back({CommandGroup::kResume, launch(input, fmt::format("--resume auto {}", detached(input))),
                      "goes on from the newest sound checkpoint; starts where there is none"});
  if (!is_here(input) && !takes_hosts(input)) {
    commands.push_back({CommandGroup::kStop, "lockstep launch --cancel last", "the run saves first"});
  }
  if (!input.job.checkpoint.directory.empty()) {
    commands.push_back({CommandGroup::kKeep,
                        fmt::format("lockstep checkpoint verify {}", shell_quoted(input.job.checkpoint.directory)),
                        "reads every byte of the checkpoints"});
  }
  commands.push_back({CommandGroup::kKeep, "lockstep report last --ledger", "no sample was lost or came twice"});
  commands.push_back({CommandGroup::kKeep, "lockstep report last --pdf run.pdf", "the run beside its prediction"});
}

void add_questions(const RunbookInput& input, Commands& commands) {
  const auto days = static_cast<std::int64_t>(std::ceil(input.goodput.seconds / 86400));
  commands.push_back({CommandGroup::kAsk,
                      fmt::format("lockstep simulate {} --days {}{}", shell_quoted(input.plan_file), days,
                                  input.launch.spares > 0 ? fmt::format(" --spares {}", input.launch.spares) : ""),
                      "failures over the run, with other spares and cadences"});
  commands.push_back({CommandGroup::kValidate,
                      fmt::format("lockstep validate {} --output validation.json", job_words(input)),
                      "trains small copies of the job on the machine at hand and compares"});
  const std::string source =
      input.makes_plan         ? job_words(input)
      : input.job_text.empty() ? fmt::format("{} --job {}", shell_quoted(input.plan_file), shell_quoted(input.job_file))
                               : shell_quoted(input.plan_file);
  commands.push_back({CommandGroup::kValidate,
                      fmt::format("lockstep runbook {} --validation validation.json -o runbook.pdf", source),
                      "this runbook with what was found"});
}

}  // namespace

std::vector<Drill> drills_of(const RunbookInput& input) {
  const std::int64_t world = input.planned.best.layout.world();
  const auto chaos = [](const std::string& kind, const std::string& rank, const std::string& more) {
    return fmt::format("{} rank={} step={}{}", kind, rank, kFaultStep, more);
  };
  std::vector<Drill> drills;
  if (!has_agents(input)) return drills;
  const std::string middle = std::to_string(world / 2), last = std::to_string(world - 1);
  drills.push_back({"A process dies", chaos("kill", middle, ""),
                    "its place is taken by a process that waits; the run goes on by itself"});
  if (input.question.run.nodes > 1) {
    drills.push_back({"A node dies", chaos("kill", last_node(input), ""),
                      survives_in_memory(input) ? "as in the table above; no step before the fault is lost"
                                                : "the run begins again at its newest checkpoint"});
  }
  drills.push_back({"A rank hangs", chaos("freeze", middle, ""),
                    "one report names the rank and the exchange; the rank is replaced"});
  drills.push_back({"A GPU is slow", chaos("slow", last, " x1.5"),
                    "the alert straggler names the rank; lockstep diagnose last says slow_rank"});
  drills.push_back({"The disk is full", fmt::format("full-disk step={} for=30s", kFaultStep),
                    "the save is tried again; training does not stop"});
  return drills;
}

std::vector<RunbookCommand> runbook_commands(const RunbookInput& input) {
  Commands commands;
  add_before(input, commands);
  add_running(input, commands);
  for (const Drill& drill : drills_of(input)) {
    const std::string apart = fmt::format(
        "steps={} checkpoint.directory={} --chaos {}", kDrillSteps,
        shell_quoted(input.job.checkpoint.directory.empty() ? "drill" : input.job.checkpoint.directory + "-drill"),
        shell_quoted(drill.chaos));
    commands.push_back({CommandGroup::kDrill, launch(input, apart), drill.name});
  }
  add_questions(input, commands);
  return commands;
}

nlohmann::json to_json(const std::vector<RunbookCommand>& commands) {
  nlohmann::json all = nlohmann::json::array();
  for (const RunbookCommand& command : commands) {
    all.push_back({{"group", to_string(command.group)}, {"text", command.text}, {"purpose", command.purpose}});
  }
  return all;
}

std::string command_lines(const std::vector<RunbookCommand>& commands, CommandGroup group) {
  std::vector<std::string> lines;
  for (const RunbookCommand& command : commands) {
    if (command.group != group) continue;
    lines.push_back("# " + command.purpose);
    lines.push_back(command.text);
  }
  return join(lines, "\n");
}

}  // namespace lockstep::report
