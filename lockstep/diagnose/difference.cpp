#include "lockstep/diagnose/difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/base/yaml.h"
#include "lockstep/diagnose/run.h"
#include "lockstep/diagnose/statistics.h"

namespace lockstep::diagnose {
namespace {

using nlohmann::json;
namespace metric = telemetry::metric;

constexpr double kLeastChange = 0.03;  // of the step
constexpr std::size_t kMostSettings = 40;

constexpr std::string_view kPhases[] = {
    metric::kForwardSeconds, metric::kBackwardSeconds,  metric::kExposedCommSeconds, metric::kWaitSeconds,
    metric::kDataSeconds,    metric::kOptimizerSeconds, metric::kCheckpointSeconds,  metric::kHostSeconds};

std::string phase_name(std::string_view name) { return std::string(name.substr(0, name.rfind("_seconds"))); }

// Checkpoints come once in a while: their mean counts. Of the others the median.
double usual(const RunEvidence& evidence, std::string_view name) {
  if (name != metric::kCheckpointSeconds) return evidence.usual(name);
  std::vector<double> of_ranks;
  of_ranks.reserve(static_cast<std::size_t>(evidence.world()));
  for (int rank = 0; rank < evidence.world(); ++rank) of_ranks.push_back(mean(evidence.of(name, rank)));
  return median(of_ranks);
}

double noise(const RunEvidence& evidence, std::string_view name) {
  double most = 0.0;
  for (int rank = 0; rank < evidence.world(); ++rank) {
    const std::vector<double>& values = evidence.of(name, rank);
    if (!values.empty()) most = std::max(most, spread(values) / std::sqrt(static_cast<double>(values.size())));
  }
  return most;
}

PhaseChange change_of(const RunEvidence& before, const RunEvidence& after, std::string_view name) {
  PhaseChange change;
  change.phase = phase_name(name);
  change.before = usual(before, name);
  change.after = usual(after, name);
  const double difference = std::abs(change.after - change.before);
  const double step = std::max(before.step_seconds, after.step_seconds);
  change.clear = difference > kLeastChange * step && difference > 4.0 * (noise(before, name) + noise(after, name));
  return change;
}

std::vector<PhaseChange> phase_changes(const RunEvidence& before, const RunEvidence& after) {
  std::vector<PhaseChange> changes;
  for (const std::string_view name : kPhases) {
    if (before.has(name) && after.has(name)) changes.push_back(change_of(before, after, name));
  }
  std::stable_sort(changes.begin(), changes.end(), [](const PhaseChange& a, const PhaseChange& b) {
    return std::abs(a.after - a.before) > std::abs(b.after - b.before);
  });
  changes.insert(changes.begin(), change_of(before, after, metric::kStepSeconds));
  const double whole = changes.front().after - changes.front().before;
  for (PhaseChange& change : changes) {
    change.share_of_change = whole != 0.0 ? 100.0 * (change.after - change.before) / whole : 0.0;
  }
  return changes;
}

using Settings = std::map<std::string, std::string>;

void flatten(const YamlNode& node, const std::string& path, Settings& settings) {
  if (node.is_map()) {
    for (const auto& entry : node.entries)
      flatten(entry.value, path.empty() ? entry.key : path + "." + entry.key, settings);
  } else if (node.is_sequence()) {
    for (std::size_t i = 0; i < node.items.size(); ++i)
      flatten(node.items[i], fmt::format("{}[{}]", path, i), settings);
  } else {
    settings[path] = node.scalar;
  }
}

// Of the job, what the plan chose for it, and versions of what ran it.
Settings settings_of(const RunEvidence& evidence) {
  Settings settings;
  try {
    flatten(parse_yaml(evidence.row.info.job_yaml, evidence.row.info.id), "", settings);
  } catch (const UserError&) {
    settings["job"] = evidence.row.info.job_yaml;
  }
  if (evidence.run) settings["layout"] = plan::to_string(evidence.run->layout);
  settings["backend"] = evidence.row.info.backend;
  settings["host"] = evidence.row.info.host;
  for (const auto& [name, version] : evidence.row.info.versions.items()) {
    settings["version " + name] = version.is_string() ? version.get<std::string>() : version.dump();
  }
  return settings;
}

std::vector<SettingChange> setting_changes(const Settings& before, const Settings& after) {
  std::vector<SettingChange> changes;
  for (const auto& [key, value] : before) {
    const auto now = after.find(key);
    if (now == after.end()) {
      changes.push_back({key, value, ""});
    } else if (now->second != value) {
      changes.push_back({key, value, now->second});
    }
  }
  for (const auto& [key, value] : after) {
    if (!before.contains(key)) changes.push_back({key, "", value});
  }
  return changes;
}

telemetry::RunRow row_of(const telemetry::RunStore& store, const std::string& run) {
  const auto row = store.find(run);
  if (!row) throw bad_input(fmt::format("there is no run `{}`", printable(run)), "see `lockstep report --list`");
  return *row;
}

std::string causes_text(const Diagnosis& diagnosis) {
  std::vector<std::string> causes;
  for (const Finding& finding : diagnosis.findings) {
    causes.push_back(fmt::format("{} ({:.0f}%)", to_string(finding.cause), finding.cost_percent));
  }
  return causes.empty() ? "healthy" : join(causes, ", ");
}

void add_phases(std::string& page, const Difference& difference) {
  page += fmt::format("{:<14}{:>12}{:>12}{:>10}\n", "a step", "before", "after", "change");
  for (const PhaseChange& phase : difference.phases) {
    if (!phase.clear && phase.phase != "step") continue;
    const std::string change =
        phase.before > 0.0 ? fmt::format("{:+.0f}%", 100.0 * (phase.after / phase.before - 1.0)) : "new";
    page += fmt::format("{:<14}{:>12}{:>12}{:>10}\n", phase.phase, format_seconds(phase.before),
                        format_seconds(phase.after), change);
  }
}

}  // namespace

Difference compare_runs(const telemetry::RunStore& store, const std::string& first, const std::string& second,
                        const StepRange& range) {
  const RunEvidence before = read_evidence(store, row_of(store, first), range);
  const RunEvidence after = read_evidence(store, row_of(store, second), range);
  Difference difference;
  difference.first = before.row.info.id;
  difference.second = after.row.info.id;
  difference.phases = phase_changes(before, after);
  difference.settings = setting_changes(settings_of(before), settings_of(after));
  difference.before = diagnose_evidence(before);
  difference.after = diagnose_evidence(after);
  return difference;
}

std::string to_text(const Difference& difference, const telemetry::TerminalStyle& style) {
  std::string page =
      fmt::format("before  {}: {}\nafter   {}: {}\n\n", printable(difference.first), causes_text(difference.before),
                  printable(difference.second), causes_text(difference.after));
  const bool clear =
      std::any_of(difference.phases.begin(), difference.phases.end(), [](const PhaseChange& p) { return p.clear; });
  add_phases(page, difference);
  if (!clear) page += "no phase of a step changed beyond what steps differ by\n";
  page += "\n";
  if (difference.settings.empty()) page += "settings and versions are the same\n";
  for (std::size_t i = 0; i < difference.settings.size() && i < kMostSettings; ++i) {
    const SettingChange& change = difference.settings[i];
    const auto shown = [](const std::string& value) { return value.empty() ? std::string("-") : printable(value); };
    page += fmt::format("{}: {} {} {}\n", printable(change.key), shown(change.before), style.unicode ? "→" : "->",
                        shown(change.after));
  }
  if (difference.settings.size() > kMostSettings) {
    page += fmt::format("... and {} more\n", difference.settings.size() - kMostSettings);
  }
  return page;
}

json to_json(const Difference& difference) {
  json phases = json::array(), settings = json::array();
  for (const PhaseChange& phase : difference.phases) {
    phases.push_back({{"phase", phase.phase},
                      {"before_seconds", phase.before},
                      {"after_seconds", phase.after},
                      {"share_of_change_percent", phase.share_of_change},
                      {"clear", phase.clear}});
  }
  for (const SettingChange& change : difference.settings) {
    settings.push_back({{"key", printable(change.key)},
                        {"before", change.before.empty() ? json() : json(printable(change.before, 2000))},
                        {"after", change.after.empty() ? json() : json(printable(change.after, 2000))}});
  }
  return {{"schema", "lockstep.difference/1"},
          {"first", printable(difference.first)},
          {"second", printable(difference.second)},
          {"phases", phases},
          {"settings", settings},
          {"findings_before", to_json(difference.before)["findings"]},
          {"findings_after", to_json(difference.after)["findings"]}};
}

}  // namespace lockstep::diagnose
