// Model from YAML: a name, or a map with `preset:` plus changes, or a map with `arch:` and everything in it.
#pragma once

#include <string>

#include "lockstep/base/yaml.h"
#include "lockstep/spec/model.h"

namespace lockstep::spec {

// `path` is the dotted place in the file ("model", "" for a model file). `default_name` names a map without `name:`.
// A relative file name starts from the folder of the file the node was written in. Throws UserError.
Model read_model(const YamlNode& node, const std::string& path, const std::string& default_name);

}  // namespace lockstep::spec
