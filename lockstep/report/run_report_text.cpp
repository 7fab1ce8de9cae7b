#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/report/run_report.h"
#include "lockstep/report/run_sections.h"
#include "lockstep/report/study/figures.h"
#include "lockstep/telemetry/plot.h"

namespace lockstep::report {
namespace {

using telemetry::Level;
using telemetry::RunStatus;

constexpr std::size_t kMostEvents = 20;
constexpr std::size_t kMostRanks = 32;

// Collects the text.
class Page {
 public:
  explicit Page(const TerminalStyle& style) : style_(style) {}

  const TerminalStyle& style() const { return style_; }
  std::string ink(Ink colour, const std::string& text) const { return inked(text, colour, style_); }
  void line(const std::string& text = {}) { text_ += text + "\n"; }
  void heading(const std::string& text) {
    line();
    line(ink(Ink::kBold, text));
  }
  void row(const std::string& name, const std::string& value) {
    constexpr int kNameWidth = 12;
    line("  " + ink(Ink::kDim, left(name, kNameWidth)) + value);
  }
  void raw(const std::string& text) { text_ += text; }
  void section(const std::string& name, const std::string& text) {
    if (text.empty()) return;
    heading(name);
    raw(text);
  }
  std::string take() { return std::move(text_); }

 private:
  const TerminalStyle& style_;
  std::string text_;
};

std::string status_text(const Page& page, const telemetry::RunRow& run) {
  const Ink ink = run.status == RunStatus::kDone      ? Ink::kGreen
                  : run.status == RunStatus::kRunning ? Ink::kCyan
                                                      : Ink::kRed;
  std::string text = page.ink(ink, to_string(run.status));
  if (run.status == RunStatus::kLost) text += " (its process is gone and did not say why)";
  if (!run.exit_reason.empty()) text += ": " + printable(run.exit_reason, 400);
  return text;
}

void add_header(Page& page, const RunReport& report) {
  const telemetry::RunRow& run = report.run;
  page.line(page.ink(Ink::kBold, "run " + printable(run.info.id, 100)));
  page.row("status", status_text(page, run));
  std::string when = moment(run.info.started_at) + " UTC";
  if (run.ended_at > 0.0) when += ", took " + format_seconds(std::round(run.ended_at - run.info.started_at));
  page.row("started", when);
  page.row("where", fmt::format("{} rank{} over {} on {}", run.info.world, run.info.world == 1 ? "" : "s",
                                run.info.backend.empty() ? "no backend" : printable(run.info.backend),
                                run.info.host.empty() ? "an unknown host" : printable(run.info.host)));
  if (run.info.versions.is_object() && !run.info.versions.empty()) {
    std::vector<std::string> versions;
    for (const auto& [name, version] : run.info.versions.items()) {
      versions.push_back(printable(name) + " " +
                         printable(version.is_string() ? version.get<std::string>() : version.dump()));
    }
    page.row("versions", join(versions, ", "));
  }
  if (!run.tags.empty()) page.row("tags", printable(join(run.tags, ", "), 300));
  if (report.steps() > 0 || !report.is_foreign()) page.row("steps", std::to_string(report.last_step));
}

// "12.0 (10.0 to 14.0)" as `show` writes figures; "-" where nothing was predicted.
template <class Show>
std::string interval_text(const plan::Interval& interval, const Show& show) {
  if (interval.expected <= 0.0) return "-";
  std::string text = show(interval.expected);
  if (interval.low > 0.0 && interval.high > interval.low) {
    text += fmt::format("  ({} to {})", show(interval.low), show(interval.high));
  }
  return text;
}

void add_measured(Page& page, const RunReport& report) {
  if (report.is_foreign() && report.measured_per_second <= 0.0) return;
  page.heading("predicted and measured");
  const auto rate = [&](double value) { return value > 0.0 ? format_rate(value, report.unit) : std::string("-"); };
  const plan::Interval& predicted = report.predicted.per_second;
  page.row("predicted", interval_text(predicted, rate));
  page.row("measured", rate(report.measured_per_second));
  if (predicted.expected > 0.0 && report.measured_per_second > 0.0) {
    const bool inside = report.measured_per_second >= predicted.low && report.measured_per_second <= predicted.high;
    page.row("residual", page.ink(inside || predicted.low == predicted.high ? Ink::kGreen : Ink::kYellow,
                                  fmt::format("{:+.1f}%", 100.0 * report.residual())));
  } else if (predicted.expected <= 0.0) {
    page.row("residual", "- (the run had no prediction)");
  }
  const auto percent = [](double share) { return fmt::format("{:.1f}%", 100.0 * share); };
  if (report.mfu > 0.0) {
    const bool is_mfu = report.waterfall.measure == Measure::kMfu;
    page.row(is_mfu ? "MFU" : "efficiency",
             fmt::format("{}, predicted {}{}", percent(report.mfu), interval_text(report.predicted.mfu, percent),
                         is_mfu ? "" : "; of the calibrated CPU peak, in place of MFU"));
  } else if (report.measured_per_second > 0.0) {
    page.row("MFU", "- (no peak of these devices is known; `lockstep calibrate JOB` measures it)");
  }
  if (report.memory.peak_bytes > 0.0 && report.predicted.memory_bytes > 0.0) {
    page.row("memory", fmt::format("{} at most, predicted {}", format_bytes(report.memory.peak_bytes),
                                   format_bytes(report.predicted.memory_bytes)));
  }
  page.raw(goodput_text(report.goodput, page.style()));
}

void add_loss(Page& page, const RunReport& report) {
  const auto& loss = report.curve(telemetry::metric::kLoss);
  const auto& evaluation = report.curve(telemetry::metric::kEvaluationLoss);
  if (loss.empty()) return;
  page.heading("loss");
  std::vector<telemetry::Curve> curves;
  const auto add = [&](const char* label, const std::vector<telemetry::Point>& points) {
    if (points.size() < 2) return;
    telemetry::Curve curve{label, {}};
    for (const auto& point : points) curve.points.emplace_back(double(point.step), point.value);
    curves.push_back(std::move(curve));
  };
  add("training", loss);
  add("evaluation", evaluation);
  page.raw(telemetry::plot(curves, {.width = std::min(page.style().width, 100), .unicode = page.style().unicode}));
  page.row("first, last", fmt::format("{:.4f}, {:.4f}", loss.front().value, loss.back().value));
  if (!evaluation.empty()) {
    std::string text = fmt::format("{:.4f}", evaluation.front().value);
    if (evaluation.size() > 1) text += fmt::format(", {:.4f}", evaluation.back().value);
    page.row("evaluation", text);
  }
  for (const ReportCurve& curve : report.evaluation_metrics()) {
    const std::string name = curve.metric.substr(telemetry::metric::kEvaluationPrefix.size());
    std::string text = fmt::format("{:.4f}", curve.points.front().value);
    if (curve.points.size() > 1) text += fmt::format(", {:.4f}", curve.points.back().value);
    page.row(printable(name, 40), text);
  }
}

void add_ranks(Page& page, const RunReport& report) {
  const bool foreign = report.steps() == 0 && !report.usage.empty();
  page.section("ranks", foreign ? usage_text(report.usage, kMostRanks, page.style())
                                : ranks_text(report, report.standings, kMostRanks, page.style()));
  if (const std::string missing = missing_text(report); !missing.empty()) {
    page.line(page.ink(Ink::kYellow, "  " + missing));
    page.line(fmt::format("  copy runs/{}/rank-*.jsonl of their nodes into this run's folder",
                          printable(report.run.info.id, 100)));
  }
}

void add_checkpoints(Page& page, const RunReport& report) {
  const std::vector<SavedCheckpoint>& checkpoints = report.incidents.checkpoints;
  if (checkpoints.empty()) return;
  page.heading("checkpoints");
  double seconds = 0.0;
  for (const SavedCheckpoint& checkpoint : checkpoints) seconds += checkpoint.seconds;
  page.row("saved", fmt::format("{}, {} in all", checkpoints.size(), format_seconds(seconds)));
  const auto newest = std::find_if(report.events.rbegin(), report.events.rend(), [](const telemetry::Event& event) {
    return event.kind == telemetry::event_kind::kCheckpoint;
  });
  if (newest != report.events.rend()) {
    page.row("newest", fmt::format("step {}: {}", newest->step, printable(newest->message, 300)));
  }
}

// What is not told as an incident already.
void add_events(Page& page, const RunReport& report) {
  std::vector<const telemetry::Event*> shown;
  for (const auto& event : report.events) {
    if (event.level >= Level::kInfo && event.kind != telemetry::event_kind::kCheckpoint && !is_of_an_incident(event)) {
      shown.push_back(&event);
    }
  }
  if (shown.empty()) return;
  page.heading("events");
  const std::size_t left_out = shown.size() - std::min(shown.size(), kMostEvents);
  if (left_out > 0) page.line(fmt::format("  ({} earlier ones; `--json` has all)", left_out));
  for (std::size_t i = left_out; i < shown.size(); ++i) {
    const telemetry::Event& event = *shown[i];
    const Ink ink = event.level == Level::kError     ? Ink::kRed
                    : event.level == Level::kWarning ? Ink::kYellow
                                                     : Ink::kPlain;
    std::string text =
        fmt::format("  {} {:<7} {}", moment(event.time).substr(11), to_string(event.level), printable(event.kind));
    if (event.rank >= 0) text += fmt::format(" rank {}", event.rank);
    if (event.step >= 0) text += fmt::format(" step {}", event.step);
    page.line(page.ink(ink, text + ": " + printable(event.message, 400)));
  }
}

}  // namespace

std::string to_text(const RunReport& report, const TerminalStyle& style) {
  Page page(style);
  add_header(page, report);
  add_measured(page, report);
  const std::string title = report.waterfall.measure == Measure::kComputing
                                ? "where the time goes"
                                : "from peak to " + measure_title(report.waterfall.measure);
  page.section(title, waterfall_text(report.waterfall, style));
  add_loss(page, report);
  add_ranks(page, report);
  page.section("memory", memory_text(report.memory, 8, style));
  page.section("incidents", incidents_text(report.incidents, kMostEvents, style));
  add_checkpoints(page, report);
  add_events(page, report);
  return page.take();
}

}  // namespace lockstep::report
