#include "lockstep/diagnose/foreign/kernel_logs.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "lockstep/base/text.h"
#include "lockstep/telemetry/kernel_log.h"

namespace lockstep::diagnose {
namespace {

using telemetry::NodeFinding;
using telemetry::Severity;

constexpr double kRecoveringPercent = 10.0;

bool has(std::string_view text, std::string_view piece) { return text.find(piece) != std::string_view::npos; }

// "[Feb 25 2025 13:59:45] [ERROR] [tid 1803] detected NVSwitch fatal error 10003 on ..."
std::optional<NodeFinding> fabric_manager_line(std::string_view line) {
  if (!has(line, "] [tid ") || (!has(line, "[ERROR]") && !has(line, "[FATAL]") && !has(line, "[CRITICAL]")))
    return std::nullopt;
  if (!has(line, "NVSwitch") && !has(line, "NVLink") && !has(line, "GPU") && !has(line, "fatal")) return std::nullopt;
  const bool fatal = !has(line, "non-fatal");
  const std::string text = printable(std::string(line.substr(line.find("] [tid ") + 2)), 160);
  return NodeFinding{
      fatal ? Severity::kFatal : Severity::kWarning,
      "fabric",
      "fabric manager",
      "fabric manager: " + text,
      "restart fabric manager (systemctl restart nvidia-fabricmanager) and reset all GPUs of the node; when it "
      "comes again, have the switch or its cables replaced",
      0};
}

struct Seen {
  NodeFinding first;
  int lines = 0;
};

std::optional<Cause> cause_of(const NodeFinding& finding) {
  if (finding.severity == Severity::kFatal) return Cause::kHardwareError;
  if (finding.severity == Severity::kApplication) return Cause::kCrash;
  if (finding.check == "fabric") return Cause::kHardwareError;
  if (finding.check == "memory") return Cause::kCrash;  // the kernel ended a process
  return std::nullopt;
}

}  // namespace

std::vector<Finding> kernel_log_findings(std::string_view text) {
  std::map<std::string, Seen> seen;  // by what it is about
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    std::optional<NodeFinding> found = fabric_manager_line(line);
    if (!found) {
      const auto parsed = telemetry::parse_kernel_line(line);
      if (parsed) found = telemetry::finding_in(parsed->text);
    }
    if (!found || !cause_of(*found) || seen.size() > 10'000) continue;
    Seen& one = seen.try_emplace(found->subject, Seen{*found, 0}).first->second;
    ++one.lines;
  }
  std::vector<Finding> findings;
  for (const auto& [subject, one] : seen) {
    Finding finding;
    finding.cause = *cause_of(one.first);
    // What ran there came to an end; a link that recovers is slow for a while, and how slow the log does not tell.
    finding.cost_percent =
        one.first.check == "fabric" && one.first.severity == Severity::kWarning ? kRecoveringPercent : 100.0;
    finding.confidence = one.first.severity == Severity::kFatal     ? 0.9
                         : one.first.severity == Severity::kWarning ? 0.6
                                                                    : 0.75;
    finding.evidence = one.first.what + (one.lines > 1 ? fmt::format(" ({} times)", one.lines) : "");
    finding.fix = one.first.fix;
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace lockstep::diagnose
