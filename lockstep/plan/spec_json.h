// Model and Cluster as JSON objects inside plans and reports: every field under its name in the spec structs, so that a
// plan file stands on its own. Read back strictly to the same value.
#pragma once

#include <nlohmann/json.hpp>

#include "lockstep/base/json.h"
#include "lockstep/spec/cluster.h"
#include "lockstep/spec/model.h"

namespace lockstep::plan {

nlohmann::json model_to_json(const spec::Model& model);
spec::Model read_model(JsonReader reader);

nlohmann::json cluster_to_json(const spec::Cluster& cluster);
spec::Cluster read_cluster(JsonReader reader);

}  // namespace lockstep::plan
