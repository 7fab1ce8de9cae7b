#include "lockstep/report/study/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lockstep/base/text.h"
#include "lockstep/report/recipe/words.h"
#include "lockstep/report/study/figures.h"
#include "lockstep/telemetry/plot.h"
#include "lockstep/telemetry/progress.h"

namespace lockstep::report {
namespace {

using telemetry::RunStatus;
using tune::Config;
using tune::KnobImportance;
using tune::Trial;

constexpr int kNameWidth = 12;
constexpr std::size_t kCompactTrials = 10;

// One call's inputs, and the text so far.
class StudyPage {
 public:
  StudyPage(const tune::StoredStudy& study, const tune::Conclusion& conclusion, const StudyTextOptions& options)
      : study_(study), found_(conclusion), options_(options), style_(options.style) {}

  std::string text() {
    add_header();
    add_spending();
    add_best();
    add_front();
    add_importance();
    add_convergence();
    add_failures();
    add_trials();
    line();
    row("next", next_command());
    return std::move(text_);
  }

 private:
  void line(const std::string& text = {}) { text_ += text + "\n"; }
  void heading(const std::string& text) {
    line();
    line(inked(text, Ink::kBold, style_));
  }
  void row(const std::string& name, const std::string& value) {
    line(fmt::format("  {}{}", inked(left(name, kNameWidth), Ink::kDim, style_), value));
  }
  void wrapped_row(const std::string& name, const std::string& value) {
    text_ += wrapped(fmt::format("  {}", inked(left(name, kNameWidth), Ink::kDim, style_)), value, style_.width);
  }
  std::string rate(double value) const { return report::rate(value, printable(study_.setup.unit)); }

  void add_header() {
    const RunStatus status = study_.row.status;
    const Ink ink = status == RunStatus::kDone ? Ink::kGreen : status == RunStatus::kRunning ? Ink::kCyan : Ink::kRed;
    line(inked(fmt::format("study {}", printable(study_.id(), 100)), Ink::kBold, style_));
    row("status", inked(to_string(status), ink, style_) +
                      (status == RunStatus::kLost ? " (its process is gone; it can be resumed)" : ""));
    row("tunes", describe_evaluator(study_.setup));
    std::string when = fmt::format("{} UTC", moment(study_.row.info.created_at));
    if (study_.row.ended_at > 0) when += fmt::format(", ended {}", moment(study_.row.ended_at));
    row("started", fmt::format("{}, on {}", when, printable(study_.row.info.host)));
    if (const std::string versions = describe_versions(study_.setup.versions); !versions.empty())
      wrapped_row("versions", versions);
    row("trials",
        fmt::format("{} of {}, {} failed{}", study_.trials.size(), study_.setup.strategy.trials, found_.failed,
                    study_.interrupted > 0 ? fmt::format(", {} cut off", study_.interrupted) : ""));
  }

  void add_spending() {
    const StudySpending spent = spending_of(study_);
    const double allowed = study_.setup.strategy.gpu_seconds;
    const std::string device = tune::device_of(study_.setup.evaluator);
    const double full = allowed > 0 ? allowed : spent.total();
    if (full <= 0) return;
    heading(allowed > 0
                ? fmt::format("budget: {} of {} spent", gpu_time(spent.total(), device), gpu_time(allowed, device))
                : fmt::format("budget: {} spent", gpu_time(spent.total(), device)));
    struct Part {
      const char* name;
      StudySpending::Share share;
      char letter;
      Ink ink;
    };
    const Part parts[] = {{"search", spent.search, 'S', Ink::kBlue},
                          {"confirm", spent.confirm, 'C', Ink::kGreen},
                          {"reverts", spent.set_backs, 'B', Ink::kCyan},
                          {"failures", spent.failures, 'F', Ink::kRed},
                          {"cut off", spent.cut_off, 'X', Ink::kYellow}};
    const int cells = std::clamp(style_.width - 50, 10, 40);
    std::vector<Segment> segments;
    double before = 0;
    for (const Part& part : parts) {
      if (part.share.trials == 0 && part.share.gpu_seconds <= 0) continue;
      row(part.name, fmt::format("{} {:>4} launch{}  {:>11}  {:>4.0f}%",
                                 placed_bar(before, part.share.gpu_seconds, full, cells, part.ink, style_),
                                 part.share.trials, part.share.trials == 1 ? "  " : "es",
                                 gpu_time(part.share.gpu_seconds, device), 100 * part.share.gpu_seconds / full));
      before += part.share.gpu_seconds;
    }
  }

  void add_best() {
    if (!found_.best) {
      heading("nothing ran");
      row("best", "no configuration was measured; see the failures below");
      return;
    }
    heading(found_.best->provisional ? "best setting so far (not confirmed by fresh launches)" : "best setting");
    add_settings(found_.best->config);
    line();
    row("best", estimate_text(found_.best->throughput, [&](double value) { return rate(value); }));
    if (found_.best->devices > 1) {
      const std::string device = tune::device_of(study_.setup.evaluator);
      row("per " + device, fmt::format("{} on {:g} {}s", rate(found_.best->throughput.value / found_.best->devices),
                                       found_.best->devices, device));
    }
    if (!found_.default_given && found_.median) {
      row("gain", fmt::format("no default given; {:+.1f}% over the median of what was tried",
                              100 * (found_.best->throughput.value / found_.median->value - 1)));
    }
    if (found_.baseline_throughput)
      row("default", estimate_text(*found_.baseline_throughput, [&](double value) { return rate(value); }));
    if (found_.gain) {
      const tune::Estimate& gain = found_.gain->percent;
      const Ink ink = gain.low > 0 ? Ink::kGreen : Ink::kYellow;
      row("gain", inked(fmt::format("{:+.1f}%", gain.value), ink, style_) +
                      fmt::format("  95% {:+.1f}% to {:+.1f}%, {} {}launches{}", gain.low, gain.high, gain.launches,
                                  found_.gain->paired ? "paired " : "", gain.low > 0 ? "" : ": may be zero"));
    }
    if (found_.launch_spread_percent > 0)
      row("spread", fmt::format("{:.1f}% between launches of one configuration", found_.launch_spread_percent));
  }

  void add_settings(const Config& best) {
    std::vector<std::vector<std::string>> rows{{"knob", "default", "best"}};
    std::vector<std::string> same;
    const auto& knobs = study_.space.knobs();
    for (std::size_t i = 0; i < knobs.size(); ++i) {
      const auto& before = found_.baseline.values.size() > i ? found_.baseline.values[i] : knobs[i].default_value;
      if (!found_.default_given) {
        rows.push_back({printable(knobs[i].name), "not given", inked(shown_value(best.values[i]), Ink::kBold, style_)});
      } else if (before == best.values[i]) {
        same.push_back(fmt::format("{}={}", knobs[i].name, shown_value(before)));
      } else {
        rows.push_back(
            {printable(knobs[i].name), shown_value(before), inked(shown_value(best.values[i]), Ink::kBold, style_)});
      }
    }
    if (rows.size() > 1) {
      text_ += table(rows, {}, 2, style_);
    } else {
      line("  the default itself: nothing that was tried is better");
    }
    if (!same.empty()) wrapped_row("unchanged", join(same, " "));
  }

  void add_front() {
    if (!found_.front) return;
    const tune::Front& front = *found_.front;
    heading("front: nothing that was tried is better in all of these");
    std::vector<std::vector<std::string>> rows{{}};
    for (const tune::Objective& objective : front.objectives) rows[0].push_back(printable(objective.name, 40));
    rows[0].insert(rows[0].end(), {"fresh launches", "differs from the default by"});
    for (const tune::Front::Point& point : front.points) {
      std::vector<std::string> row;
      for (std::size_t i = 0; i < point.values.size(); ++i)
        row.push_back(objective_text(front.objectives[i], point.values[i].value, study_.setup.unit));
      row.push_back(point.provisional ? "none: by the models" : std::to_string(point.values[0].launches));
      const std::string change = printable(study_.space.to_text(point.config, &study_.space.default_config()), 4000);
      row.push_back(change.empty() ? "nothing" : change);
      rows.push_back(std::move(row));
    }
    text_ += cut_lines(table(rows, {}, 2, style_), style_);
  }

  void add_importance() {
    if (found_.importance.empty()) return;
    const bool asked = std::any_of(found_.importance.begin(), found_.importance.end(),
                                   [](const KnobImportance& knob) { return knob.set_back_percent.has_value(); });
    if (asked) add_set_backs();
    add_variance();
    if (!found_.interactions.empty()) {
      std::vector<std::string> pairs;
      for (const auto& pair : found_.interactions)
        pairs.push_back(fmt::format("{} with {} {:.0f}%", printable(pair.first), printable(pair.second),
                                    pair.variance_percent.value));
      wrapped_row("together", join(pairs, ", "));
    }
  }

  int knob_width() const {
    int width = kNameWidth;
    for (const auto& knob : study_.space.knobs())
      width = std::max(width, telemetry::display_width(printable(knob.name)));
    return std::min(width, 28);
  }

  void add_set_backs() {
    heading("what it costs to revert one knob to its default (percent of the best)");
    double full = 1;
    for (const KnobImportance& knob : found_.importance)
      if (knob.set_back_percent && !knob.set_back_fails) full = std::max(full, knob.set_back_percent->high);
    const int cells = std::clamp(style_.width - knob_width() - 36, 8, 30);
    for (const KnobImportance& knob : found_.importance) {
      if (!knob.set_back_percent) continue;
      const bool untouched = knob.set_back_percent->launches == 0 && !knob.set_back_fails;
      const std::string figures = knob.set_back_fails ? std::string("does not run without it")
                                  : untouched         ? std::string("is at its default")
                                                      : cost_percent(*knob.set_back_percent);
      line(fmt::format("  {}  {} {}", left(printable(knob.knob), knob_width()), cost_bar(knob, full, cells), figures));
      if (!knob.moved_along.empty()) {
        const std::string indent(static_cast<std::size_t>(knob_width() + 4), ' ');
        text_ += wrapped(fmt::format("{}must change too: ", indent), printable(join(knob.moved_along, ", "), 400),
                         style_.width);
      }
    }
    const std::string matters = top_text(found_);
    if (!matters.empty()) wrapped_row("top", matters);
  }

  // Solid up to the low end of the interval, lighter up to its high end.
  std::string cost_bar(const KnobImportance& knob, double full, int cells) const {
    const tune::Estimate& cost = *knob.set_back_percent;
    if (knob.set_back_fails) return stacked_bar({{full, '!', Ink::kRed}}, full, cells, style_);
    const double low = std::clamp(cost.low, 0.0, full), high = std::clamp(cost.high, low, full);
    return stacked_bar({{low, '#', Ink::kBlue}, {high - low, '-', Ink::kDim}}, full, cells, style_);
  }

  void add_variance() {
    std::vector<const KnobImportance*> knobs;
    for (const KnobImportance& knob : found_.importance)
      if (knob.variance_total_percent.high > 0) knobs.push_back(&knob);
    if (knobs.empty()) return;
    std::stable_sort(knobs.begin(), knobs.end(), [](const KnobImportance* a, const KnobImportance* b) {
      return a->variance_total_percent.value > b->variance_total_percent.value;
    });
    heading("share of the variance over the whole space (a different question)");
    std::vector<std::vector<std::string>> rows{{"knob", "alone", "95%", "with others", "95%"}};
    for (const KnobImportance* knob : knobs) {
      const auto &alone = knob->variance_main_percent, &total = knob->variance_total_percent;
      rows.push_back({printable(knob->knob), fmt::format("{:.0f}%", alone.value),
                      fmt::format("{:.0f} to {:.0f}", alone.low, alone.high), fmt::format("{:.0f}%", total.value),
                      fmt::format("{:.0f} to {:.0f}", total.low, total.high)});
    }
    text_ += table(rows, {1, 2, 3, 4}, 2, style_);
  }

  void add_convergence() {
    std::vector<double> best;
    double highest = 0;
    std::int64_t at = 0;
    for (const Trial& trial : study_.trials) {
      if (!is_search(trial.purpose)) continue;
      if (measured(trial) && trial.throughput > highest) {
        highest = trial.throughput;
        at = trial.number;
      }
      best.push_back(highest > 0 ? highest : std::nan(""));
    }
    if (highest <= 0 || best.size() < 2) return;
    heading("convergence (best launch so far, over the search)");
    if (style_.unicode) line(fmt::format("  {}", telemetry::sparkline(best, std::clamp(style_.width - 4, 10, 72))));
    wrapped_row(
        "highest",
        fmt::format("{} in trial {}; the highest of many launches is biased upwards: see the confirmed figures above",
                    rate(highest), at));
  }

  void add_failures() {
    std::map<tune::Outcome, std::pair<std::int64_t, std::string>> failures;
    for (const Trial& trial : study_.trials) {
      if (measured(trial)) continue;
      auto& [count, message] = failures[trial.outcome];
      ++count;
      if (!trial.message.empty()) message = trial.message;
    }
    if (failures.empty()) return;
    heading("failures");
    for (const auto& [outcome, seen] : failures) {
      const int room = std::max(style_.width - kNameWidth - 10, 20);
      row(to_string(outcome),
          fmt::format("{:>3}  {}", seen.first, printable(seen.second, static_cast<std::size_t>(room))));
    }
  }

  void add_trials() {
    std::vector<const Trial*> shown;
    for (const Trial& trial : study_.trials)
      if (options_.all || measured(trial)) shown.push_back(&trial);
    if (shown.empty()) return;
    if (!options_.all) {
      std::stable_sort(shown.begin(), shown.end(),
                       [](const Trial* a, const Trial* b) { return a->throughput > b->throughput; });
      if (shown.size() > kCompactTrials) shown.resize(kCompactTrials);
    }
    heading(options_.all ? "trials"
                         : fmt::format("trials: the {} fastest of {} (--all shows every one)", shown.size(),
                                       study_.trials.size()));
    std::vector<std::vector<std::string>> rows{{"trial", "for", "result", "seconds", "differs from the default by"}};
    for (const Trial* trial : shown) {
      const std::string result = measured(*trial) ? rate(trial->throughput) + (trial->stopped_early ? " (stopped)" : "")
                                                  : inked(to_string(trial->outcome), Ink::kRed, style_);
      std::string change = printable(study_.space.to_text(trial->config, &study_.space.default_config()), 4000);
      if (change.empty()) change = "nothing";
      if (trial->purpose == tune::Purpose::kSetBack)
        change = fmt::format("{} (back: {})", change, printable(trial->set_back_knob));
      rows.push_back({std::to_string(trial->number), to_string(trial->purpose), result,
                      fmt::format("{:.1f}", trial->seconds), change});
    }
    text_ += options_.all ? table(rows, {0, 2, 3}, 2, style_) : cut_lines(table(rows, {0, 2, 3}, 2, style_), style_);
  }

  std::string next_command() const {
    const std::string id = printable(study_.id(), 100);
    switch (study_.row.status) {
      case RunStatus::kDone:
        return fmt::format("lockstep recipe {}", id);
      case RunStatus::kRunning:
        return fmt::format("lockstep tune --show {} (it is still running)", id);
      default:
        return fmt::format("lockstep tune --resume {}", id);
    }
  }

  const tune::StoredStudy& study_;
  const tune::Conclusion& found_;
  const StudyTextOptions& options_;
  const TerminalStyle& style_;
  std::string text_;
};

}  // namespace

std::string study_text(const tune::StoredStudy& study, const tune::Conclusion& conclusion,
                       const StudyTextOptions& options) {
  return StudyPage(study, conclusion, options).text();
}

}  // namespace lockstep::report
