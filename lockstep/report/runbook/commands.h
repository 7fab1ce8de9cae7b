// The commands of a runbook, in the order in which a team needs them. Every one is a line that a shell takes as it is.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/report/runbook/runbook.h"

namespace lockstep::report {

enum class CommandGroup { kPlan, kCheck, kLaunch, kWatch, kResume, kStop, kKeep, kDrill, kAsk, kValidate };
constexpr auto names_of(CommandGroup) {
  return enum_names<CommandGroup::kValidate>("plan", "check", "launch", "watch", "resume", "stop", "keep", "drill",
                                             "ask", "validate");
}

struct RunbookCommand {
  CommandGroup group = CommandGroup::kPlan;
  std::string text;
  std::string purpose;  // one phrase
};

std::vector<RunbookCommand> runbook_commands(const RunbookInput& input);
nlohmann::json to_json(const std::vector<RunbookCommand>& commands);  // [{"group", "text", "purpose"}]

// The lines of one group, each with its purpose as a comment above it.
std::string command_lines(const std::vector<RunbookCommand>& commands, CommandGroup group);

// A fault on purpose: what `--chaos` is told and what must follow.
struct Drill {
  std::string name;
  std::string chaos;
  std::string expected;  // quotes no figure
};
std::vector<Drill> drills_of(const RunbookInput& input);

}  // namespace lockstep::report
