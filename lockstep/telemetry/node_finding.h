// NodeFinding: what a health check of a node, or a line of its kernel log, says, and how bad it is.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/base/enum_names.h"

namespace lockstep::telemetry {

enum class Severity {
  kOk,           // looked at, and well
  kInfo,         // worth knowing
  kWarning,      // worth a look
  kApplication,  // a process did something wrong, or met a fault that does not outlive it: its rank is restarted
  kFatal,        // the node is not to be used before it is repaired
};
constexpr auto names_of(Severity) {
  return enum_names<Severity::kFatal>("ok", "info", "warning", "application", "fatal");
}

using lockstep::to_string;  // beside those of schema.h

struct NodeFinding {
  Severity severity = Severity::kOk;
  std::string check;    // "disk", "memory", "link", "gpu", "kernel"
  std::string subject;  // what of it: a folder, an interface, a GPU; findings of one subject follow each other
  std::string what;     // one line
  std::string fix;      // "": nothing to do
  int pid = 0;          // of the process that an application error names; 0: none

  bool operator==(const NodeFinding&) const = default;
};

// "disk: /ckpt is read-only; mount it for writing".
inline std::string describe(const NodeFinding& finding) {
  return finding.check + ": " + finding.what + (finding.fix.empty() ? "" : "; " + finding.fix);
}

inline nlohmann::json to_json(const NodeFinding& finding) {
  return {{"severity", to_string(finding.severity)},
          {"check", finding.check},
          {"subject", finding.subject},
          {"what", finding.what},
          {"fix", finding.fix},
          {"pid", finding.pid}};
}

}  // namespace lockstep::telemetry
