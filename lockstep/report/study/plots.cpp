#include "lockstep/report/study/plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/report/canvas/chart.h"
#include "lockstep/report/recipe/words.h"
#include "lockstep/report/study/curves.h"

namespace lockstep::report {
namespace {

constexpr double kWidth = 540;
using Mark = KeyEntry::Mark;

std::string hover_of(const StudyView& study, const tune::Trial& trial) {
  const std::string result = tune::measured(trial)
                                 ? rate(trial.throughput, study.unit)
                                 : fmt::format("{}{}{}", to_string(trial.outcome), trial.message.empty() ? "" : ": ",
                                               printable(trial.message, 120));
  return fmt::format("trial {} ({}): {}\n{}", trial.number, to_string(trial.purpose), result,
                     printable(study.space.to_text(trial.config), 600));
}

Shape dot_shape(tune::Purpose purpose) {
  switch (purpose) {
    case tune::Purpose::kConfirm:
      return {Tint::kAccent, {}, 1};
    case tune::Purpose::kBaseline:
    case tune::Purpose::kControl:
      return {Tint::kSecond, {}, 1};
    case tune::Purpose::kSetBack:
      return {Tint::kPaper, Stroke{Tint::kMuted, 0.9}, 1};
    default:
      return {Tint::kRamp4, {}, 1};
  }
}

bool is_search(const tune::Trial& trial) {
  return trial.purpose == tune::Purpose::kBaseline || trial.purpose == tune::Purpose::kExplore ||
         trial.purpose == tune::Purpose::kReplicate;
}

// Ends of the observed throughputs; the lower one no further down than a quarter of the best, so that one terrible
// trial does not flatten the rest.
Scale throughput_scale(const StudyView& study) {
  double low = 1e300, high = 0;
  for (const tune::Trial& trial : study.trials) {
    if (!tune::measured(trial)) continue;
    low = std::min(low, trial.throughput), high = std::max(high, trial.throughput);
  }
  if (high <= 0) return {0, 1, false};
  return round_scale(std::max(low, high * 0.25) * 0.96, high * 1.02);
}

void draw_failures(Chart& chart, const StudyView& study, const Scale& y,
                   const std::function<double(const tune::Trial&)>& x_of) {
  const double floor = y.low + (y.high - y.low) * 0.03;
  for (const tune::Trial& trial : study.trials)
    if (!tune::measured(trial)) chart.cross(x_of(trial), floor, 2.2, Tint::kBad, hover_of(study, trial));
}

void draw_stages(Chart& chart, const StudyView& study) {
  std::int64_t first = -1, last = -1;
  for (const tune::Trial& trial : study.trials) {
    if (is_search(trial)) continue;
    if (first < 0) first = trial.number;
    last = trial.number;
  }
  const auto end = static_cast<double>(study.trials.back().number);
  if (first < 0) {
    chart.stage(-0.5, end + 0.5, "search", false);
    return;
  }
  chart.stage(-0.5, static_cast<double>(first) - 0.5, "search", false);
  chart.stage(static_cast<double>(first) - 0.5, std::max(end, static_cast<double>(last)) + 0.5,
              "fresh launches: winner, default, reverts", true);
}

void draw_convergence(Canvas& canvas, const Box& box, const StudyView& study) {
  Scale y = throughput_scale(study);
  y.high += (y.high - y.low) * 0.1;  // the stages' names go there
  const auto last = static_cast<double>(study.trials.back().number);
  Chart chart(canvas, {box.x, box.y, box.width, box.height - 26}, {"", "trial", study.unit},
              {{-0.5, last + 0.5}, y, {}, {}});
  draw_stages(chart, study);
  const std::vector<Leader> leaders = leaders_over_time(study);
  std::vector<Chart::Slice> band;
  std::vector<Position> estimate, observed;
  for (std::size_t i = 0; i < leaders.size(); ++i) {
    const Leader& leader = leaders[i];
    const auto from = static_cast<double>(leader.trial);
    band.push_back({from, leader.low, leader.high});
    band.push_back(
        {i + 1 < leaders.size() ? static_cast<double>(leaders[i + 1].trial) : last, leader.low, leader.high});
    estimate.push_back({from, leader.estimate});
  }
  double best = 0;
  for (const tune::Trial& trial : study.trials) {
    if (tune::measured(trial) && is_search(trial)) best = std::max(best, trial.throughput);
    if (best > 0 && is_search(trial)) observed.push_back({static_cast<double>(trial.number), best});
  }
  chart.band(band, Tint::kAccentSoft);
  chart.steps(observed, observed.empty() ? 0 : observed.back().x, {Tint::kMuted, 0.9, true});
  chart.steps(estimate, last, {Tint::kAccent, 1.4});
  if (study.conclusion.baseline_throughput)
    chart.rule(study.conclusion.baseline_throughput->value, {Tint::kSecond, 0.9, true}, "the default setting");
  for (const tune::Trial& trial : study.trials)
    if (tune::measured(trial))
      chart.dot(static_cast<double>(trial.number), trial.throughput, trial.stopped_early ? 1.5 : 2.3,
                dot_shape(trial.purpose), hover_of(study, trial));
  draw_failures(chart, study, y, [](const tune::Trial& trial) { return static_cast<double>(trial.number); });
  draw_key(canvas, {box.x + 30, box.bottom() - 12}, box.width - 40,
           {{Mark::kDot, Tint::kRamp4, "search"},
            {Mark::kDot, Tint::kAccent, "winner, fresh launch"},
            {Mark::kDot, Tint::kSecond, "default"},
            {Mark::kRing, Tint::kMuted, "revert"},
            {Mark::kCross, Tint::kBad, "failed"},
            {Mark::kLine, Tint::kAccent, "leader, estimated"},
            {Mark::kDash, Tint::kMuted, "best observed"},
            {Mark::kDash, Tint::kSecond, "default, estimated"}});
}

void draw_cost(Canvas& canvas, const StudyView& study) {
  const Scale y = throughput_scale(study);
  double most = 0, sum = 0, longest = 1e300, best = 0;
  for (const tune::Trial& trial : study.trials) {
    most = std::max(most, trial.gpu_seconds), sum += trial.gpu_seconds;
    if (trial.gpu_seconds > 0) longest = std::min(longest, trial.gpu_seconds);
  }
  const double half = kWidth / 2 - 8;
  Chart each(canvas, {0, 0, half, 210}, {"One trial", "GPU-seconds of the trial", study.unit},
             {round_scale(0, std::max(most, 1e-6)), y, {}, {}});
  for (const tune::Trial& trial : study.trials)
    if (tune::measured(trial))
      each.dot(trial.gpu_seconds, trial.throughput, 2.2, dot_shape(trial.purpose), hover_of(study, trial));
  draw_failures(each, study, y, [](const tune::Trial& trial) { return trial.gpu_seconds; });
  Chart all(canvas, {kWidth / 2 + 8, 0, half, 210}, {"The whole study", "GPU-seconds spent", study.unit},
            {{0, std::max(sum, 1e-6)}, y, {}, {}});
  std::vector<Position> path;
  double spent = 0;
  for (const tune::Trial& trial : study.trials) {
    spent += trial.gpu_seconds;
    if (tune::measured(trial) && is_search(trial)) best = std::max(best, trial.throughput);
    if (best > 0) path.push_back({spent, best});
    if (tune::measured(trial)) {
      all.dot(spent, trial.throughput, 1.8, dot_shape(trial.purpose), hover_of(study, trial));
    } else {
      all.cross(spent, y.low + (y.high - y.low) * 0.03, 2, Tint::kBad, hover_of(study, trial));
    }
  }
  all.steps(path, sum, {Tint::kMuted, 0.9, true});
}

std::vector<Bar> variance_bars(const tune::Conclusion& conclusion) {
  std::vector<tune::KnobImportance> entries = conclusion.importance;
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return a.variance_total_percent.value > b.variance_total_percent.value;
  });
  std::vector<Bar> bars;
  for (const tune::KnobImportance& entry : entries) {
    const tune::Estimate& total = entry.variance_total_percent;
    Bar bar{printable(entry.knob, 40), total.value, total.low, total.high, true, Tint::kRamp3, "", ""};
    bar.figure = fmt::format("{:.0f}% ({:.0f} to {:.0f}), alone {:.0f}%", total.value, total.low, total.high,
                             entry.variance_main_percent.value);
    bar.hover = fmt::format("{}: {}", bar.label, bar.figure);
    bars.push_back(std::move(bar));
  }
  return bars;
}

}  // namespace

void draw_convergence_in(Canvas& canvas, const Box& box, const StudyView& study) {
  draw_convergence(canvas, box, study);
}

StudyPlot convergence_plot(const StudyView& study) {
  return {"convergence",
          "Convergence",
          "Every trial in order. The line is the model's estimate of the setting that led at that moment, with its 95% "
          "band; the best observed figure (dashed) overstates, since luck is part of it. Figures are reported from the "
          "fresh launches on the right.",
          kWidth,
          256,
          [&study](Canvas& canvas) {
            draw_convergence(canvas, {0, 0, kWidth, 256}, study);
          }};
}

StudyPlot cost_plot(const StudyView& study) {
  return {"cost",
          "Cost against throughput",
          "What each trial was charged (launch, warm-up and failures included), and what had been reached after how "
          "much was spent.",
          kWidth,
          212,
          [&study](Canvas& canvas) { draw_cost(canvas, study); }};
}

StudyPlot importance_plot(const StudyView& study) {
  const std::vector<Bar> costs = set_back_bars(study.conclusion, 40), shares = variance_bars(study.conclusion);
  const double first = bars_height(costs.size()), second = bars_height(shares.size());
  return {
      "importance",
      "Importance: two questions",
      "Above: what is lost when one knob goes back to its default and the others stay at the best, measured. Below: "
      "how much of the variance of log throughput over the whole space a knob explains with its interactions, from "
      "the model. A knob may matter for one question and not for the other.",
      kWidth,
      first + second + 10,
      [=](Canvas& canvas) {
        draw_bars(canvas, {0, 0, kWidth, first}, "Cost of reverting it from the best", "%", costs);
        draw_bars(canvas, {0, first + 10, kWidth, second}, "Share of the variance over the space", "%", shares);
      }};
}

std::vector<StudyPlot> study_plots(const StudyView& study) {
  std::vector<StudyPlot> plots;
  const auto ran =
      std::count_if(study.trials.begin(), study.trials.end(), [](const auto& t) { return tune::measured(t); });
  if (ran == 0) return plots;
  if (study.conclusion.front && !study.conclusion.front->points.empty()) plots.push_back(front_plot(study));
  plots.push_back(convergence_plot(study));
  if (!study.conclusion.importance.empty()) plots.push_back(importance_plot(study));
  if (ran >= 3 && study.conclusion.best) plots.push_back(effects_plot(study));
  plots.push_back(parallel_plot(study));
  plots.push_back(cost_plot(study));
  if (!knobs_of_failure(study).empty()) plots.push_back(failure_plot(study));
  return plots;
}

}  // namespace lockstep::report
