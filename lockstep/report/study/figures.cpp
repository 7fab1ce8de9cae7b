#include "lockstep/report/study/figures.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/clock.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/report/canvas/chart.h"
#include "lockstep/report/recipe/words.h"
#include "lockstep/telemetry/progress.h"

namespace lockstep::report {

bool is_search(tune::Purpose purpose) {
  return purpose == tune::Purpose::kBaseline || purpose == tune::Purpose::kExplore ||
         purpose == tune::Purpose::kReplicate;
}

std::string moment(double unix_time) {
  std::string text = utc_timestamp(unix_time).substr(0, 19);
  std::replace(text.begin(), text.end(), 'T', ' ');
  return text;
}

std::string gpu_time(double gpu_seconds, const std::string& device) {
  if (gpu_seconds < 360) return fmt::format("{:.1f} {}-s", gpu_seconds, device);
  return fmt::format("{:.2f} {}-h", gpu_seconds / 3600, device);
}

std::string describe_evaluator(const tune::StudySetup& setup) {
  std::string kind;
  if (setup.evaluator.is_object() && setup.evaluator.contains("kind") && setup.evaluator["kind"].is_string())
    kind = setup.evaluator["kind"].get<std::string>();
  const std::string how = kind == "simulate"  ? "by prediction: nothing was run"
                          : kind == "engine"  ? "by running it"
                          : kind == "command" ? "by running a command per trial"
                          : kind == "worker"  ? "by asking a worker"
                                              : printable(kind);
  const std::string name = setup.name.empty() ? "a study without a name" : printable(setup.name);
  return how.empty() ? name : fmt::format("{}, {}", name, how);
}

std::string describe_versions(const nlohmann::json& versions) {
  std::vector<std::string> parts;
  if (!versions.is_object()) return {};
  for (const auto& [name, version] : versions.items()) {
    parts.push_back(fmt::format("{} {}", printable(name),
                                printable(version.is_string() ? version.get<std::string>() : version.dump(), 200)));
  }
  return join(parts, ", ");
}

std::string cost_percent(const tune::Estimate& percent) {
  return fmt::format("{:>5.1f}%  ({:.1f} to {:.1f}, n={})", percent.value, percent.low, percent.high, percent.launches);
}

std::string top_text(const tune::Conclusion& conclusion) {
  std::vector<std::string> top, tied;
  for (const std::string& knob : conclusion.top) top.push_back(printable(knob));
  for (const std::string& knob : conclusion.tied) tied.push_back(printable(knob));
  if (top.empty() && tied.empty()) return {};
  std::string text = join(top, ", ");
  if (!tied.empty()) text += fmt::format("{}{} (a tie)", top.empty() ? "" : "; then ", join(tied, " or "));
  return text;
}

std::string estimate_text(const tune::Estimate& estimate, const std::function<std::string(double)>& show) {
  return fmt::format("{}  95% {} to {}, {} launch{}", show(estimate.value), show(estimate.low), show(estimate.high),
                     estimate.launches, estimate.launches == 1 ? "" : "es");
}

std::string objective_text(const tune::Objective& objective, double value, const std::string& unit) {
  const std::string shown = printable(unit, 40);
  if (objective.source == tune::Objective::Source::kThroughput) return rate(value, shown);
  if (objective.source == tune::Objective::Source::kDollars) {
    const std::string things = shown.ends_with("/s") ? shown.substr(0, shown.size() - 2) : "units";
    return fmt::format("{:.3g} USD per million {}", value, things);
  }
  if (objective.value.ends_with("memory_bytes")) return fmt::format("{} {}", format_bytes(value), objective.name);
  return fmt::format("{} {}", short_number(value), printable(objective.name, 40));
}

std::string cut_lines(const std::string& text, const TerminalStyle& style) {
  std::string out;
  for (std::string line : split(text, '\n')) {
    if (telemetry::display_width(line) > style.width && line.find('\033') == std::string::npos) {
      // Only the last column is long, and printable() leaves ASCII escapes alone: a cut never splits a colour code.
      while (telemetry::display_width(line) > style.width - 3) {
        line.pop_back();
        while (!line.empty() && (static_cast<unsigned char>(line.back()) & 0xc0) == 0x80) line.pop_back();
      }
      line += "...";
    }
    out += line + "\n";
  }
  if (!out.empty()) out.pop_back();
  return out;
}

}  // namespace lockstep::report
