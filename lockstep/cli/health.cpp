#include "lockstep/cli/health.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/elastic/host_address.h"
#include "lockstep/planner/cadence.h"

namespace lockstep::cli {
namespace {

using elastic::Finding;
using elastic::Severity;

bool uses_gpus(const spec::Cluster& cluster) {
  return std::any_of(cluster.groups.begin(), cluster.groups.end(),
                     [](const spec::NodeGroup& group) { return !group.device.is_cpu(); });
}

// Weights and optimizer state of adapters are a small part, which nobody has computed here.
double checkpoint_bytes(const spec::Job& job) {
  const bool saves = job.checkpoint.at_end || job.checkpoint.every_seconds > 0 || job.checkpoint.every_steps > 0;
  if (!saves || job.lora.rank > 0) return 0.0;
  return planner::cadence_question(job.model, job.cluster, 1.0, 1.0).state_bytes;
}

void watch_usual_folders(elastic::HealthOptions& options) {
  std::error_code error;
  const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
  options.folders.push_back({"TMPDIR", error ? std::filesystem::path("/tmp") : temporary, 0.0, false});
}

// The interface towards the other nodes: the one that was chosen, else by route to the first of them.
std::vector<std::string> interfaces_of(const Placement& placement) {
  if (!placement.nodes || placement.nodes->on_loopback()) return {};
  if (!placement.interface.empty()) return {placement.interface};
  const auto& nodes = placement.nodes->nodes;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (static_cast<int>(i) == placement.nodes->self) continue;
    try {
      const std::string name = elastic::interface_of_address(elastic::address_of_this_host(nodes[i].host));
      if (!name.empty()) return {name};
    } catch (const UserError&) {
      continue;  // its name may be known later; that it is not known now is a finding of its own
    }
  }
  return {};
}

const char* mark_of(Severity severity) {
  return named<Severity::kFatal>(severity, "ok", "info", "warn", "warn", "FATAL");
}

void print_table(const std::vector<Finding>& findings) {
  std::size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, finding.check.size());
  for (const Finding& finding : findings) {
    fmt::print("{:<5}  {:<{}}  {}\n", mark_of(finding.severity), finding.check, width, finding.what);
    if (!finding.fix.empty()) fmt::print("{:<5}  {:<{}}  -> {}\n", "", "", width, finding.fix);
  }
}

elastic::HealthOptions options_of(const HealthRequest& request) {
  elastic::HealthOptions options = elastic::health_options_from_environment();
  const std::filesystem::path home = telemetry::home_directory();
  // Without a job: where there are GPUs, something will compute on them.
  options.gpus = std::filesystem::exists("/dev/nvidiactl") || std::getenv("LOCKSTEP_NVML") != nullptr;
  if (!request.job_file.empty()) {
    const spec::Job job = spec::load_job(request.job_file);
    options.gpus = uses_gpus(job.cluster);
    const std::string& folder = job.checkpoint.directory;
    options.folders.push_back(
        {"the checkpoint folder", folder.empty() ? home.string() : folder, checkpoint_bytes(job)});
  }
  options.folders.push_back({"the run store", home});
  watch_usual_folders(options);
  if (!request.interface.empty()) {
    elastic::address_of_interface(request.interface);
    options.interfaces = {request.interface};
    return options;
  }
  for (const elastic::Interface& interface : elastic::interfaces_here()) {
    if (interface.address.rfind("127.", 0) != 0) options.interfaces.push_back(interface.name);
  }
  return options;
}

}  // namespace

elastic::HealthOptions health_options(const elastic::RankRequest& request, const Placement& placement) {
  elastic::HealthOptions options = elastic::health_options_from_environment();
  const spec::Job& job = request.job;
  options.gpus = uses_gpus(job.cluster);
  if (!request.checkpoint_directory.empty()) {
    options.folders.push_back({"the checkpoint folder", request.checkpoint_directory, checkpoint_bytes(job)});
  }
  if (!request.home.empty()) options.folders.push_back({"the run store", request.home});
  watch_node(placement, options);
  if (request.plan) {
    const plan::MemoryBreakdown& memory = request.plan->best.memory;
    const double each = (options.gpus ? 0.0 : memory.total()) + memory.snapshots;
    options.needed_memory = each * request.ranks.local_world;
  }
  return options;
}

void watch_node(const Placement& placement, elastic::HealthOptions& options) {
  watch_usual_folders(options);
  options.interfaces = interfaces_of(placement);
  options.nodes = placement.nodes;
}

std::unique_ptr<elastic::HealthMonitor> start_health_checks(const elastic::RankRequest& request,
                                                            const Placement& placement, std::vector<Finding>& found) {
  if (request.job.health.node_checks == spec::NodeChecks::kOff) return nullptr;
  return start_health_checks(health_options(request, placement), request.job.health.node_checks, found);
}

std::unique_ptr<elastic::HealthMonitor> start_health_checks(const elastic::HealthOptions& options,
                                                            spec::NodeChecks policy, std::vector<Finding>& found) {
  if (policy == spec::NodeChecks::kOff) return nullptr;
  auto monitor = std::make_unique<elastic::HealthMonitor>(options);
  for (Finding& finding : monitor->first()) {
    if (finding.severity == Severity::kOk) continue;
    if (finding.severity == Severity::kFatal && policy == spec::NodeChecks::kAct) {
      throw environment_error(
          fmt::format("node {} is not fit to train: {}: {}", telemetry::host_name(), finding.check, finding.what),
          finding.fix + (finding.fix.empty() ? "" : "; ") +
              "see `lockstep health`; health.node_checks of a job or --health of a command says what they may do");
    }
    if (policy == spec::NodeChecks::kRecord) finding.severity = std::min(finding.severity, Severity::kWarning);
    found.push_back(std::move(finding));
  }
  return monitor;
}

std::function<std::vector<elastic::Finding>(const std::vector<int>&)> findings_of(
    std::shared_ptr<elastic::HealthMonitor> monitor, std::vector<elastic::Finding> earlier, bool acts) {
  if (monitor == nullptr) return {};
  return [monitor = std::move(monitor), earlier = std::move(earlier), acts](const std::vector<int>& pids) mutable {
    monitor->watch_processes(pids);
    std::vector<elastic::Finding> findings = std::exchange(earlier, {});
    for (elastic::Finding& finding : monitor->take()) {
      if (!acts) finding.severity = std::min(finding.severity, elastic::Severity::kWarning);
      findings.push_back(std::move(finding));
    }
    return findings;
  };
}

std::string finding_line(const nlohmann::json& message) {
  const auto severity = value_named<Severity>(message.value("severity", "")).value_or(Severity::kInfo);
  if (severity < Severity::kWarning || message.value("told", false)) return "";
  const std::string node = message.value("node", ""), fix = message.value("fix", "");
  return fmt::format("{}{}: {}: {}{}", severity == Severity::kFatal ? "unhealthy" : "warning",
                     node.empty() ? "" : " (" + node + ")", message.value("check", ""), message.value("what", ""),
                     fix.empty() ? "" : "; " + fix);
}

void record_finding(telemetry::Recorder& recorder, const nlohmann::json& message) {
  const auto severity = value_named<Severity>(message.value("severity", "")).value_or(Severity::kInfo);
  const std::string node = message.value("node", "");
  recorder.event({.level = severity == Severity::kFatal ? telemetry::Level::kError
                           : severity > Severity::kInfo ? telemetry::Level::kWarning
                                                        : telemetry::Level::kInfo,
                  .kind = std::string(telemetry::event_kind::kNodeHealth),
                  .rank = -1,
                  .message = fmt::format("{}{}: {}", node.empty() ? "" : node + ": ", message.value("check", ""),
                                         message.value("what", "")),
                  .data = message});
}

std::vector<Finding> health_now(const HealthRequest& request) {
  return elastic::HealthMonitor(options_of(request)).first();
}

int show_health(const HealthRequest& request) {
  const std::vector<Finding> findings = health_now(request);
  const bool fatal = std::any_of(findings.begin(), findings.end(),
                                 [](const Finding& finding) { return finding.severity == Severity::kFatal; });
  if (request.json) {
    nlohmann::json list = nlohmann::json::array();
    for (const Finding& finding : findings) list.push_back(elastic::to_json(finding));
    fmt::print(
        "{}\n",
        nlohmann::json(
            {{"schema", "lockstep.health/1"}, {"host", telemetry::host_name()}, {"ok", !fatal}, {"findings", list}})
            .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    print_table(findings);
    fmt::print("\n{}\n", fatal ? "this node is not fit to train; next: repair what is marked FATAL"
                               : "this node is fit to train; next: lockstep doctor");
  }
  return static_cast<int>(fatal ? ExitCode::kRunFailed : ExitCode::kOk);
}

}  // namespace lockstep::cli
