#include "lockstep/report/recipe/limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/text.h"
#include "lockstep/report/recipe/words.h"
#include "lockstep/tune/job/knobs.h"

namespace lockstep::report {
namespace {

using tune::Config;
using tune::Knob;

std::vector<std::size_t> differing_knobs(const Config& a, const Config& b) {
  std::vector<std::size_t> knobs;
  for (std::size_t i = 0; i < std::min(a.values.size(), b.values.size()); ++i)
    if (!(a.values[i] == b.values[i])) knobs.push_back(i);
  return knobs;
}

std::string other_work(const StudyView& study) {
  const std::string devices =
      fmt::format("another number of devices than {:.0f}", std::round(study.conclusion.best->devices));
  return fmt::format("Another model, sequence length, batch or data set than {}'s; {}; other hardware.",
                     printable(study.name), devices);
}

// The failure for lack of memory that is nearest to the best.
std::string memory_margin(const StudyView& study) {
  const Config& best = study.conclusion.best->config;
  std::vector<std::size_t> nearest;
  const tune::Trial* failure = nullptr;
  for (const tune::Trial& trial : study.trials) {
    if (trial.outcome != tune::Outcome::kOutOfMemory) continue;
    std::vector<std::size_t> knobs = differing_knobs(trial.config, best);
    if (failure == nullptr || knobs.size() < nearest.size()) failure = &trial, nearest = std::move(knobs);
  }
  if (failure == nullptr) return "";
  std::vector<std::string> changes;
  for (std::size_t i = 0; i < std::min<std::size_t>(nearest.size(), 3); ++i) {
    changes.push_back(fmt::format("{} = {} instead of {}", printable(study.space.knobs()[nearest[i]].name),
                                  shown_value(failure->config.values[nearest[i]]),
                                  shown_value(best.values[nearest[i]])));
  }
  if (nearest.size() > 3) changes.push_back(fmt::format("{} more", nearest.size() - 3));
  return fmt::format("Memory: {} ran out of it. A longer sequence or a larger model may not fit either.",
                     join(changes, ", "));
}

// "lower", "upper" or "": the end of its range that the best value is at.
std::string end_of_range(const Knob& knob, const tune::Value& value) {
  if (!tune::is_active(value) || !knob.ordered) return "";
  if (knob.kind == tune::KnobKind::kChoice) {
    if (knob.choices.size() < 3) return "";
    return value == knob.choices.front() ? "lower" : value == knob.choices.back() ? "upper" : "";
  }
  double number = std::numeric_limits<double>::quiet_NaN();
  if (const auto* whole = std::get_if<std::int64_t>(&value)) number = static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(&value)) number = *real;
  if (!(knob.high > knob.low) || !std::isfinite(number)) return "";
  const double slack = knob.kind == tune::KnobKind::kReal ? (knob.high - knob.low) * 0.01 : 0;
  return number <= knob.low + slack ? "lower" : number >= knob.high - slack ? "upper" : "";
}

// Below zero there is nothing to try: a count at 0 or 1 is not a reason to widen its range.
bool is_natural_end(const Knob& knob, const std::string& end) {
  const double low = knob.kind == tune::KnobKind::kChoice
                         ? (std::holds_alternative<std::int64_t>(knob.choices.front())
                                ? static_cast<double>(std::get<std::int64_t>(knob.choices.front()))
                                : 0.0)
                         : knob.low;
  return end == "lower" && low <= 1;
}

std::string edges(const StudyView& study) {
  std::vector<std::string> found;
  for (std::size_t i = 0; i < study.space.size(); ++i) {
    const Knob& knob = study.space.knobs()[i];
    const tune::Value& value = study.conclusion.best->config.values[i];
    const std::string end = end_of_range(knob, value);
    if (!end.empty() && !is_natural_end(knob, end))
      found.push_back(fmt::format("{} = {} ({} end)", printable(knob.name), shown_value(value), end));
  }
  if (found.empty()) return "";
  return fmt::format("At the edge of its range: {}. A wider range may have a better setting.", join(found, ", "));
}

std::string constraints(const StudyView& study) {
  std::vector<std::string> kept;
  for (const std::string& constraint : study.space.constraints()) kept.push_back(printable(constraint, 80));
  if (kept.empty()) return "";
  const std::size_t shown = std::min<std::size_t>(kept.size(), 3);
  const std::string more = kept.size() > shown ? fmt::format("; {} more", kept.size() - shown) : "";
  kept.resize(shown);
  return fmt::format("Only settings with {}{} were considered.", join(kept, "; "), more);
}

// Settings that are fast because they compute something else.
std::string other_results(const StudyView& study) {
  const auto changes_results = [](const std::string& target) {
    return target == "precision" || target == "communication.compression" || target == "communication.powersgd_rank" ||
           target.starts_with("optimizer.") || target.starts_with("model.") || target.starts_with("data.");
  };
  std::vector<std::string> found;
  for (std::size_t i = 0; i < study.space.size(); ++i) {
    const Knob& knob = study.space.knobs()[i];
    const tune::Value& value = study.conclusion.best->config.values[i];
    const bool changed =
        tune::is_active(value) && (!study.conclusion.default_given || !(value == study.conclusion.baseline.values[i]));
    if (changed && (changes_results(tune::job_target(knob)) || knob.name == "dtype"))
      found.push_back(fmt::format("{} = {}", printable(knob.name), shown_value(value)));
  }
  if (found.empty()) return "";
  return fmt::format("{} changes what is computed, not only how fast: compare the loss before adopting it.",
                     join(found, ", "));
}

std::string nccl(const StudyView& study) {
  for (const Knob& knob : study.space.knobs()) {
    if (!knob.name.starts_with("NCCL_")) continue;
    return "NCCL_* variables are debugging aids, not an interface: pin them to this NCCL version and topology, and "
           "unset them after an upgrade until re-checked.";
  }
  return "";
}

}  // namespace

std::vector<std::string> limits_of(const StudyView& study) {
  std::vector<std::string> limits{other_work(study)};
  for (std::string limit : {other_results(study), memory_margin(study), constraints(study), edges(study), nccl(study)})
    if (!limit.empty()) limits.push_back(std::move(limit));
  return limits;
}

}  // namespace lockstep::report
