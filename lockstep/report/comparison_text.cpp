// Decision matrix of clusters, and scaling of one.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "lockstep/base/units.h"
#include "lockstep/report/figures.h"
#include "lockstep/report/plan_text.h"
#include "lockstep/telemetry/plot.h"

namespace lockstep::report {
namespace {

constexpr int kPlotHeight = 9;
constexpr int kWidestPlot = 76;

bool has_tokens(const plan::Candidate& candidate) { return candidate.batch.sequence_length > 0; }

const plan::Interval& rate_of(const plan::Candidate& candidate) {
  const plan::Prediction& prediction = *candidate.prediction;
  return has_tokens(candidate) ? prediction.tokens_per_second : prediction.samples_per_second;
}

// Of the column with rates: what the first plan there is counts.
template <class Rows>
const char* rate_heading(const Rows& rows) {
  for (const auto& row : rows) {
    if (row.best) return has_tokens(*row.best) ? "tokens/s" : "samples/s";
  }
  return "per second";
}

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

std::vector<std::string> option_cells(const planner::Option& option, const TerminalStyle& style) {
  if (!option.best) return {option.cluster.name, "-", "-", "-", "-", "-", inked("no", Ink::kRed, style), "-", "-"};
  const plan::Candidate& best = *option.best;
  return {option.cluster.name,
          format_count(rate_of(best).expected),
          percent(best.prediction->mfu.expected),
          best.checkpoint ? percent(best.checkpoint->goodput) : "-",
          best.cost ? fmt::format("{:.4g}", best.cost->days) : "-",
          best.cost ? format_dollars(best.cost->usd) : "-",
          fmt::format("{:.0f}%", 100 * best.memory.total() / best.memory.capacity),
          !option.meets_deadline
              ? "-"
              : (*option.meets_deadline ? inked("yes", Ink::kGreen, style) : inked("no", Ink::kRed, style)),
          fmt::format("{}, micro {}", short_layout(best.layout), best.batch.micro)};
}

std::string size_of_job(const planner::Comparison& comparison) {
  const std::string unit = rate_heading(comparison.options);
  std::string text = fmt::format("{} {}", format_count(comparison.tokens), unit == "samples/s" ? "samples" : "tokens");
  if (!comparison.tokens_given) text += " (say how many with --tokens)";
  return text;
}

using Points = std::vector<std::pair<double, double>>;

Points points_of(const planner::Scaling& scaling, const std::function<double(const planner::ScalingPoint&)>& value) {
  Points points;
  for (const planner::ScalingPoint& point : scaling.points) {
    if (point.best) points.emplace_back(static_cast<double>(point.devices), value(point));
  }
  return points;
}

std::string plot_of(const std::vector<telemetry::Curve>& curves, const std::string& label, const TerminalStyle& style) {
  return telemetry::plot(curves, {.width = std::min(style.width, kWidestPlot),
                                  .height = kPlotHeight,
                                  .x_label = "GPUs",
                                  .y_label = label,
                                  .unicode = style.unicode});
}

// Predicted and, above it, what the smallest size would give with perfect scaling.
std::string throughput_plot(const planner::Scaling& scaling, const TerminalStyle& style) {
  const auto rate = [](const planner::ScalingPoint& point) { return rate_of(*point.best).expected; };
  double most = 0;
  for (const auto& [devices, value] : points_of(scaling, rate)) most = std::max(most, value);
  const double unit = most > 1e6 ? 1e6 : most > 1e3 ? 1e3 : 1;
  const auto scaled = [&](const planner::ScalingPoint& point) { return rate(point) / unit; };
  const auto ideal = [&](const planner::ScalingPoint& point) { return rate(point) / point.efficiency / unit; };
  return plot_of({{"lower: predicted", points_of(scaling, scaled)}, {"upper: perfect", points_of(scaling, ideal)}},
                 fmt::format("{} {}",
                             unit == 1e6   ? "million"
                             : unit == 1e3 ? "thousand"
                                           : "",
                             rate_heading(scaling.points)),
                 style);
}

std::string efficiency_plot(const planner::Scaling& scaling, const TerminalStyle& style) {
  return plot_of(
      {{"efficiency", points_of(scaling, [](const planner::ScalingPoint& point) { return 100 * point.efficiency; })},
       {"line at 90%",
        points_of(scaling, [](const planner::ScalingPoint&) { return 100 * planner::kGoodEfficiency; })}},
      "efficiency, % of the smallest size", style);
}

std::vector<std::string> point_cells(const planner::Scaling& scaling, const planner::ScalingPoint& point,
                                     const TerminalStyle& style) {
  if (!point.best) return {std::to_string(point.devices), "-", "-", "-", "-", "-", "does not fit"};
  const plan::Candidate& best = *point.best;
  const bool marked = scaling.falls_below == point.devices;
  const std::string efficiency = percent(point.efficiency);
  return {std::to_string(point.devices),
          std::to_string(point.global_sequences),
          format_count(rate_of(best).expected),
          format_count(rate_of(best).expected / static_cast<double>(point.devices)),
          percent(best.prediction->mfu.expected),
          point.efficiency < planner::kGoodEfficiency ? inked(efficiency, Ink::kRed, style) : efficiency,
          fmt::format("{}, micro {}{}", short_layout(best.layout), best.batch.micro,
                      marked ? inked("   <- below 90% from here", Ink::kYellow, style) : "")};
}

}  // namespace

std::string to_text(const planner::Comparison& comparison, const TerminalStyle& style) {
  std::string text = fmt::format("{}: {}\n\n", inked(comparison.model, Ink::kBold, style), size_of_job(comparison));
  std::vector<std::vector<std::string>> rows{{"cluster", rate_heading(comparison.options), "MFU", "goodput", "days",
                                              "USD", "memory", "in time", "best layout"}};
  for (const planner::Option& option : comparison.options) rows.push_back(option_cells(option, style));
  text += table(rows, {1, 2, 3, 4, 5, 6}, 2, style);
  for (const planner::Option& option : comparison.options) {
    if (!option.problem.empty()) text += fmt::format("\n{}", wrapped("  ! ", option.problem, style.width));
  }
  return fmt::format("{}\n{}", text,
                     wrapped(inked("Verdict", Ink::kBold, style) + "  ", comparison.verdict, style.width));
}

std::string to_text(const planner::Scaling& scaling, const TerminalStyle& style) {
  const std::string batch = scaling.weak ? "weak scaling: the batch grows with the GPUs"
                                         : "strong scaling: the same global batch everywhere (--weak lets it grow)";
  std::string text =
      fmt::format("{} on nodes of {}, {}\n\n", inked(scaling.model, Ink::kBold, style), scaling.cluster, batch);
  std::vector<std::vector<std::string>> rows{
      {"GPUs", "batch", rate_heading(scaling.points), "per GPU", "MFU", "efficiency", "best layout"}};
  for (const planner::ScalingPoint& point : scaling.points) rows.push_back(point_cells(scaling, point, style));
  text += table(rows, {0, 1, 2, 3, 4, 5}, 2, style);
  text += "\n";
  text += throughput_plot(scaling, style);
  text += "\n";
  text += efficiency_plot(scaling, style);
  text += "\n" + (scaling.falls_below ? fmt::format("Efficiency falls below 90% at {} GPUs.\n", *scaling.falls_below)
                                      : std::string("Efficiency stays above 90% over the whole range.\n"));
  return text;
}

}  // namespace lockstep::report
