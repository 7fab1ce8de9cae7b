// A tree written as YAML in which text stays text: whatever a string holds, it never becomes a key, a number, an anchor
// or another document, for readers of YAML 1.1 (kubectl, PyYAML) as well as 1.2.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lockstep::schedulers {

using Tree = nlohmann::ordered_json;

// Block style, keys in the order of the tree. Throws UserError for text that is not UTF-8.
std::string yaml_text(const Tree& tree);
// The same for several documents.
std::string yaml_text(const std::vector<Tree>& documents);

}  // namespace lockstep::schedulers
