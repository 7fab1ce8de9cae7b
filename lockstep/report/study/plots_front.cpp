// The plot of a study of several objectives.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/report/canvas/chart.h"
#include "lockstep/report/study/figures.h"
#include "lockstep/report/study/plots.h"

namespace lockstep::report {
namespace {

constexpr double kWidth = 540, kHeight = 290;
constexpr double kGiB = 1024.0 * 1024 * 1024;
using Mark = KeyEntry::Mark;

bool is_memory(const tune::Objective& objective) { return objective.value.ends_with("memory_bytes"); }

// In the unit of its axis.
double shown(const tune::Objective& objective, double value) { return is_memory(objective) ? value / kGiB : value; }

std::string axis_of(const tune::Objective& objective, const std::string& unit) {
  if (objective.source == tune::Objective::Source::kThroughput) return printable(unit, 40);
  if (objective.source == tune::Objective::Source::kDollars) return "USD per million";
  return printable(objective.name, 40) + (is_memory(objective) ? ", GiB" : "");
}

// Every trial that has both figures, as the axes show them.
std::vector<std::pair<Position, const tune::Trial*>> trials_of(const StudyView& study, const tune::Front& front) {
  std::vector<std::pair<Position, const tune::Trial*>> seen;
  for (const tune::Trial& trial : study.trials) {
    const auto across = value_of(front.objectives[0], trial, study.usd_per_device_hour);
    const auto up = value_of(front.objectives[1], trial, study.usd_per_device_hour);
    if (across && up) seen.push_back({{shown(front.objectives[0], *across), shown(front.objectives[1], *up)}, &trial});
  }
  return seen;
}

// The border of what is dominated: from member to member by right angles.
std::vector<Position> stairs(const tune::Front& front) {
  std::vector<Position> corners;
  for (auto point = front.points.rbegin(); point != front.points.rend(); ++point) {  // slowest first
    const Position at{shown(front.objectives[0], point->values[0].value),
                      shown(front.objectives[1], point->values[1].value)};
    if (!corners.empty()) corners.push_back({corners.back().x, at.y});
    corners.push_back(at);
  }
  return corners;
}

void draw_front(Canvas& canvas, const StudyView& study) {
  const tune::Front& front = *study.conclusion.front;
  const auto trials = trials_of(study, front);
  double left = 1e300, right = 0, low = 1e300, high = 0;
  const auto widen = [&](double x, double y) {
    left = std::min(left, x), right = std::max(right, x), low = std::min(low, y), high = std::max(high, y);
  };
  for (const auto& [at, trial] : trials) widen(at.x, at.y);
  for (const tune::Front::Point& point : front.points)
    widen(shown(front.objectives[0], point.values[0].value), shown(front.objectives[1], point.values[1].value));
  Chart chart(canvas, {0, 0, kWidth, kHeight - 26},
              {"", axis_of(front.objectives[0], study.unit), axis_of(front.objectives[1], study.unit)},
              {round_scale(left * 0.98, right * 1.02), round_scale(low * 0.98, high * 1.02), {}, {}});
  for (const auto& [at, trial] : trials) {
    const bool standard = study.conclusion.default_given && trial->config == study.conclusion.baseline;
    chart.dot(at.x, at.y, 2.2, {standard ? Tint::kSecond : Tint::kRamp3, {}, 0.9},
              fmt::format("trial {}: {}", trial->number, printable(study.space.to_text(trial->config), 600)));
  }
  if (front.objectives.size() == 2) chart.line(stairs(front), {Tint::kAccent, 1.0});
  for (const tune::Front::Point& point : front.points) {
    std::string hover;
    for (std::size_t i = 0; i < point.values.size(); ++i)
      hover += (i > 0 ? ", " : "") + objective_text(front.objectives[i], point.values[i].value, study.unit);
    chart.dot(shown(front.objectives[0], point.values[0].value), shown(front.objectives[1], point.values[1].value), 3.4,
              {point.provisional ? Tint::kPaper : Tint::kAccent, Stroke{Tint::kAccent, 1.1}, 1},
              fmt::format("{}\n{}", hover, printable(study.space.to_text(point.config), 600)));
  }
  draw_key(canvas, {30, kHeight - 12}, kWidth - 40,
           {{Mark::kDot, Tint::kRamp3, "trial"},
            {Mark::kDot, Tint::kSecond, "default"},
            {Mark::kDot, Tint::kAccent, "front, fresh launches"},
            {Mark::kRing, Tint::kAccent, "front, by the models"}});
}

}  // namespace

StudyPlot front_plot(const StudyView& study) {
  return {"front",
          "What can be had together",
          "Every trial by its first two figures. On the line nothing that was tried is better in both; members of the "
          "front were chosen by the models and, where they are filled, measured again.",
          kWidth,
          kHeight,
          [&study](Canvas& canvas) { draw_front(canvas, study); }};
}

}  // namespace lockstep::report
