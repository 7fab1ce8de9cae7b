// Job from a YAML tree, and the checks that need more than one of its parts.
#pragma once

#include <string>

#include "lockstep/base/yaml.h"
#include "lockstep/spec/job.h"

namespace lockstep::spec {

// `default_name` names a job without `name:`. Throws UserError.
Job read_job(const YamlNode& root, const std::string& default_name);

}  // namespace lockstep::spec
