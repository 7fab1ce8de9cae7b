// What a group is called in spans: its name and its members, the same on every one of them and on nobody else:
// "dp:0-3", "tp:4,5", "dp:0-24/8" (0, 8, 16, 24).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::telemetry {

struct GroupLabel {
  std::string name;        // "dp"
  std::vector<int> ranks;  // global, in the order of the group
};

std::string to_text(const GroupLabel& label);
// Nothing for anything else.
std::optional<GroupLabel> parse_group_label(std::string_view text);

}  // namespace lockstep::telemetry
