// The health of this node: what the checks of a run look at, and `lockstep health`.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/cli/session.h"
#include "lockstep/elastic/health_monitor.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::cli {

inline constexpr const char* kFinding = "finding";  // type of the agent's messages (elastic/agent.h)

// What is watched for this run on this node.
elastic::HealthOptions health_options(const elastic::RankRequest& request, const Placement& placement);

// The checks of a run, begun; null where the job switched them off. Throws environment_error for a node that is not to
// be used, with the first fatal finding and its fix.
std::unique_ptr<elastic::HealthMonitor> start_health_checks(const elastic::RankRequest& request,
                                                            const Placement& placement,
                                                            std::vector<elastic::Finding>& found);

// The same for a run without a job.
std::unique_ptr<elastic::HealthMonitor> start_health_checks(const elastic::HealthOptions& options,
                                                            spec::NodeChecks policy,
                                                            std::vector<elastic::Finding>& found);
// Adds what every run needs of this node: a temporary folder, the interface towards the other nodes, and them.
void watch_node(const Placement& placement, elastic::HealthOptions& options);

// New findings of the monitor, for the agent; those of before the start come with the first ones. `acts`: none is fatal
// otherwise.
std::function<std::vector<elastic::Finding>(const std::vector<int>&)> findings_of(
    std::shared_ptr<elastic::HealthMonitor> monitor, std::vector<elastic::Finding> earlier, bool acts);

// One line for people; "" for what is only recorded, and for what was printed before.
std::string finding_line(const nlohmann::json& message);
void record_finding(telemetry::Recorder& recorder, const nlohmann::json& message);

struct HealthRequest {
  std::string job_file;  // "": no job; its checkpoint folder and its devices are looked at
  std::string interface;
  bool json = false;
};
// Every check once.
std::vector<elastic::Finding> health_now(const HealthRequest& request);
// The same, as a table or JSON (schema lockstep.health/1). Returns the exit code: 1 for a fatal finding.
int show_health(const HealthRequest& request);

}  // namespace lockstep::cli
