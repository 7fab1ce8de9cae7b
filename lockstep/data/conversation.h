// Conversation: an example of instruction data, whatever shape its record has.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/base/enum_names.h"
#include "lockstep/base/error.h"

namespace lockstep::data {

struct Turn {
  enum class Role { kSystem, kUser, kAssistant };
  friend constexpr auto names_of(Role) { return enum_names<Role::kAssistant>("system", "user", "assistant"); }
  Role role = Role::kUser;
  std::string content;
  std::string context;  // of an instruction: what it is to be carried out on; "": nothing
};

using Conversation = std::vector<Turn>;

// The conversations of one record:
//   {"messages": [{"role", "content"}, ...]}                 role: system (first), user, assistant
//   {"instruction", "input"?, "output"}                      one turn each
//   {"prompt", "completion"} or {"prompt", "response"}       one turn each
//   {"instruction", "instances": [{"input"?, "output"}]}     one conversation per instance (self-instruct seeds)
// Other keys are ignored. Throws UserError at `place` for any other shape, for values that are not text, and for a
// conversation without an answer.
std::vector<Conversation> read_conversations(const nlohmann::json& record, const SourcePlace& place);

}  // namespace lockstep::data
