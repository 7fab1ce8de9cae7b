// Values as YAML in which text stays text: whatever it holds, it never becomes a key, a number, an anchor, a tag or
// another document, for readers of YAML 1.1 (kubectl, PyYAML) as well as 1.2.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/base/yaml.h"

namespace lockstep::schedulers {

using Tree = nlohmann::ordered_json;

// Keys in their order; texts of several lines as blocks where nothing is changed by it. Throws UserError for text that
// is not UTF-8.
std::string yaml_text(const Tree& tree);
// Several of them in one file.
std::string yaml_documents(const std::vector<Tree>& documents);

// What was written in a file, to be handed on: numbers and booleans where they are not quoted, else text.
Tree json_of(const YamlNode& node);

}  // namespace lockstep::schedulers
