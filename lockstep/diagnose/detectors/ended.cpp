// Runs that hang or ended, and nodes that are broken: from events.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/diagnose/detectors/detectors.h"

namespace lockstep::diagnose {
namespace {

using nlohmann::json;
using telemetry::Event;
using telemetry::RunStatus;
namespace event_kind = telemetry::event_kind;

constexpr std::size_t kLongest = 300;

bool failed(const RunEvidence& evidence) {
  return evidence.row.status == RunStatus::kFailed || evidence.row.status == RunStatus::kLost;
}

std::vector<int> ranks_in(const json& data, const char* key) {
  std::vector<int> ranks;
  if (!data.is_object() || !data.contains(key) || !data[key].is_array()) return ranks;
  for (const json& rank : data[key]) {
    if (rank.is_number_integer()) ranks.push_back(rank.get<int>());
  }
  return ranks;
}

std::string text_in(const json& data, const char* key) {
  if (!data.is_object() || !data.contains(key) || !data[key].is_string()) return {};
  return printable(data[key].get<std::string>(), kLongest);
}

double number_in(const json& data, const char* key) {
  return data.is_object() && data.contains(key) && data[key].is_number() ? data[key].get<double>() : 0.0;
}

// Percent of the run's time that recovery took and steps that were done again.
double recovery_percent(const RunEvidence& evidence) {
  const json& summary = evidence.row.summary;
  double seconds = number_in(summary, "lost_steps") * evidence.step_seconds;
  if (summary.is_object() && summary.contains("recovery_seconds") && summary["recovery_seconds"].is_array()) {
    for (const json& one : summary["recovery_seconds"]) seconds += one.is_number() ? one.get<double>() : 0.0;
  }
  const double whole = evidence.row.ended_at - evidence.row.info.started_at;
  return whole > 0.0 ? std::min(100.0, 100.0 * seconds / whole) : 0.0;
}

}  // namespace

Findings find_hang(const RunEvidence& evidence) {
  const Event* last = nullptr;
  for (const Event& event : evidence.events) {
    if (event.kind == event_kind::kHang) last = &event;
  }
  if (last == nullptr) return {};
  const double cost =
      failed(evidence) || evidence.row.status == RunStatus::kRunning ? 100.0 : recovery_percent(evidence);
  std::vector<int> missing = ranks_in(last->data, "missing");
  if (missing.empty() && last->rank >= 0) missing.push_back(last->rank);
  return {make_finding(Cause::kHang, 0.95, cost, missing, printable(last->message, kLongest),
                       "see the stacks of all ranks in `lockstep report " + printable(evidence.row.info.id) +
                           "`; then --resume without the node of the rank that is missing")};
}

Findings find_crash(const RunEvidence& evidence) {
  const Event* first = nullptr;
  int lost = 0;
  for (const Event& event : evidence.events) {
    if (event.kind != event_kind::kRankLost && event.kind != event_kind::kFailure) continue;
    if (first == nullptr) first = &event;
    ++lost;
  }
  const std::string id = printable(evidence.row.info.id);
  if (first == nullptr) {
    if (!failed(evidence)) return {};
    const std::string reason =
        evidence.row.status == RunStatus::kLost ? "its process is gone and did not say why" : evidence.row.exit_reason;
    return {make_finding(Cause::kCrash, 0.8, 100.0, {}, "the run ended: " + printable(reason, kLongest),
                         "lockstep report " + id + "; then train again with --resume")};
  }
  const double cost = failed(evidence) ? 100.0 : recovery_percent(evidence);
  std::vector<int> ranks;
  if (first->rank >= 0) ranks.push_back(first->rank);
  std::string what = printable(first->message, kLongest);
  if (lost > 1) what += fmt::format(" (first of {} failures)", lost);
  return {make_finding(Cause::kCrash, 0.95, cost, ranks, what,
                       failed(evidence) ? "remove the cause, then train again with --resume"
                                        : "the run went on; remove the cause before it comes back")};
}

Findings find_hardware_error(const RunEvidence& evidence) {
  const Event* worst = nullptr;
  for (const Event& event : evidence.events) {
    if (event.kind != event_kind::kNodeHealth) continue;
    const std::string severity = text_in(event.data, "severity");
    if (severity != "fatal" && severity != "application") continue;
    const bool is_worse = worst == nullptr || (severity == "fatal" && text_in(worst->data, "severity") != "fatal");
    if (is_worse) worst = &event;
  }
  if (worst == nullptr) return {};
  const std::string node = text_in(worst->data, "node");
  const bool fatal = text_in(worst->data, "severity") == "fatal";
  std::vector<int> ranks;
  if (worst->rank >= 0 && worst->rank < evidence.world()) {
    ranks = evidence.ranks_of_node(evidence.places[static_cast<std::size_t>(worst->rank)].node);
  }
  // A node that is not to be used takes its share of the run with it, whatever its ranks did so far.
  const double out = fatal && !ranks.empty() ? 100.0 * static_cast<double>(ranks.size()) / evidence.world() : 0.0;
  const double cost = failed(evidence) ? 100.0 : std::max(out, recovery_percent(evidence));
  std::string fix = text_in(worst->data, "fix");
  if (fatal) fix = fmt::format("cordon node {}: {}", node.empty() ? "?" : node, fix.empty() ? "repair it" : fix);
  return {make_finding(Cause::kHardwareError, 0.9, cost, ranks,
                       printable(worst->message.empty() ? text_in(worst->data, "what") : worst->message, kLongest),
                       fix)};
}

}  // namespace lockstep::diagnose
