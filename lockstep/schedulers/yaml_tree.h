// What was written in a file, to be handed on to a scheduler as it is.
#pragma once

#include <nlohmann/json.hpp>

#include "lockstep/base/yaml.h"

namespace lockstep::schedulers {

// Numbers and booleans where they are not quoted, else text.
nlohmann::ordered_json json_of(const YamlNode& node);

}  // namespace lockstep::schedulers
