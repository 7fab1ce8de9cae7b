// Job from a YAML tree, and the checks that need more than one of its parts.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/yaml.h"
#include "lockstep/spec/job.h"

namespace lockstep::spec {

// The tree of a job file with `key=value` overrides applied, as load_job() reads it.
YamlNode load_job_tree(const std::string& path, const std::vector<std::string>& overrides);

// `default_name` names a job without `name:`. Throws UserError.
Job read_job(const YamlNode& root, const std::string& default_name);

}  // namespace lockstep::spec
