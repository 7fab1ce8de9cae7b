// Model and Cluster as JSON objects inside plans and reports: every field under its name in the spec structs, so that a
// plan file stands on its own. Read back strictly to the same value.
#pragma once

#include <nlohmann/json.hpp>

#include "lockstep/plan/strict_reader.h"
#include "lockstep/spec/cluster.h"
#include "lockstep/spec/model.h"

namespace lockstep::plan {

nlohmann::json model_to_json(const spec::Model& model);
spec::Model read_model(StrictReader reader);

nlohmann::json cluster_to_json(const spec::Cluster& cluster);
spec::Cluster read_cluster(StrictReader reader);

}  // namespace lockstep::plan
