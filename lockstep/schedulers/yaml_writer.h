// Values as YAML that any reader understands alike. Texts are always quoted or in blocks, so none of them can become a
// key, an anchor, a tag or another type.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/base/yaml.h"

namespace lockstep::schedulers {

// A document; keys in their order. Texts of several lines of plain ASCII are written as blocks.
std::string yaml_text(const nlohmann::ordered_json& value);

// What was written in a file, to be handed on: numbers and booleans where they are not quoted, else text.
nlohmann::ordered_json json_of(const YamlNode& node);

}  // namespace lockstep::schedulers
