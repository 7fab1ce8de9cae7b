// What a node uses, as metrics of a run.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/elastic/usage.h"
#include "lockstep/telemetry/schema.h"

namespace lockstep::cli {

// `disk`: a folder whose disk is watched. `gpus`: whether the ranks use those of this node; $LOCKSTEP_NVML, where it is
// set, stands for NVIDIA's library and is asked in any case.
elastic::UsageOptions usage_options(std::function<std::string()> disk, bool gpus);

// Of a message "usage" (elastic/agent.h), by rank; those of the node with its first rank.
std::map<int, std::vector<telemetry::Metric>> usage_metrics(const nlohmann::json& message);

}  // namespace lockstep::cli
