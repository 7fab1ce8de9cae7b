#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/clock.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/report/run_report.h"
#include "lockstep/telemetry/plot.h"

namespace lockstep::report {
namespace {

using telemetry::Level;
using telemetry::RunStatus;

constexpr std::size_t kMostEvents = 20;

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
  std::string take() { return std::move(text_); }

 private:
  const TerminalStyle& style_;
  std::string text_;
};

// "2026-11-15 03:15:00": the second is enough for people.
std::string moment(double unix_time) {
  std::string text = utc_timestamp(unix_time).substr(0, 19);
  std::replace(text.begin(), text.end(), 'T', ' ');
  return text;
}

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
  page.row("steps", std::to_string(report.steps));
}

void add_throughput(Page& page, const RunReport& report) {
  page.heading("predicted and measured");
  const auto rate = [&](double value) { return value > 0.0 ? format_rate(value, report.unit) : std::string("-"); };
  std::string predicted = rate(report.predicted_per_second);
  if (report.predicted_low > 0.0 && report.predicted_high > 0.0) {
    predicted += fmt::format("  ({} to {})", rate(report.predicted_low), rate(report.predicted_high));
  }
  page.row("predicted", predicted);
  page.row("measured", rate(report.measured_per_second));
  if (report.predicted_per_second > 0.0 && report.measured_per_second > 0.0) {
    const bool inside = report.predicted_low <= 0.0 || (report.measured_per_second >= report.predicted_low &&
                                                        report.measured_per_second <= report.predicted_high);
    page.row("residual",
             page.ink(inside ? Ink::kGreen : Ink::kYellow, fmt::format("{:+.1f}%", 100.0 * report.residual())));
  } else if (report.predicted_per_second <= 0.0) {
    page.row("residual", "- (the run had no prediction)");
  }
}

void add_loss(Page& page, const RunReport& report) {
  if (report.loss.empty()) return;
  page.heading("loss");
  std::vector<telemetry::Curve> curves;
  const auto add = [&](const char* label, const std::vector<telemetry::Point>& points) {
    if (points.size() < 2) return;
    telemetry::Curve curve{label, {}};
    for (const auto& point : points) curve.points.emplace_back(double(point.step), point.value);
    curves.push_back(std::move(curve));
  };
  add("training", report.loss);
  add("evaluation", report.evaluation_loss);
  page.raw(telemetry::plot(curves, {.width = std::min(page.style().width, 100), .unicode = page.style().unicode}));
  page.row("first, last", fmt::format("{:.4f}, {:.4f}", report.loss.front().value, report.loss.back().value));
  if (!report.evaluation_loss.empty()) {
    page.row("evaluation",
             fmt::format("{:.4f}, {:.4f}", report.evaluation_loss.front().value, report.evaluation_loss.back().value));
  }
}

void add_ranks(Page& page, const RunReport& report) {
  if (report.ranks.empty()) return;
  page.heading("ranks");
  page.line(page.ink(Ink::kDim, fmt::format("  {:>5}  {:>12}  {:>12}  {:>9}  {:>12}", "rank", "step", "compute",
                                            "slower", "peak memory")));
  const auto seconds = [](double value) { return value > 0.0 ? format_seconds(value) : std::string("-"); };
  for (const RateOfRank& rank : report.ranks) {
    const std::string memory = rank.memory_bytes > 0.0 ? format_bytes(rank.memory_bytes) : "-";
    const std::string text =
        fmt::format("  {:>5}  {:>12}  {:>12}  {:>+8.1f}%  {:>12}", rank.rank, seconds(rank.step_seconds),
                    seconds(rank.compute_seconds), 100.0 * rank.slowdown, memory);
    page.line(rank.straggler ? page.ink(Ink::kYellow, text + "  straggler") : text);
  }
  if (const std::size_t missing = report.missing_ranks.size(); missing > 0) {
    page.line(
        page.ink(Ink::kYellow, fmt::format("  no records of {} rank{} here, rank {} first: look on their nodes for",
                                           missing, missing == 1 ? "" : "s", report.missing_ranks.front())));
    page.line(fmt::format("  runs/{}/rank-*.jsonl and copy the files into this run's folder",
                          printable(report.run.info.id, 100)));
  }
}

void add_checkpoints(Page& page, const RunReport& report) {
  std::vector<const telemetry::Event*> checkpoints;
  for (const auto& event : report.events) {
    if (event.kind == telemetry::event_kind::kCheckpoint) checkpoints.push_back(&event);
  }
  if (checkpoints.empty()) return;
  page.heading("checkpoints");
  double seconds = 0.0;
  for (const auto* event : checkpoints) {
    if (event->data.is_object() && event->data.contains("seconds") && event->data["seconds"].is_number()) {
      seconds += event->data["seconds"].get<double>();
    }
  }
  const telemetry::Event& newest = *checkpoints.back();
  page.row("saved", fmt::format("{}, {} in all", checkpoints.size(), format_seconds(seconds)));
  page.row("newest", fmt::format("step {}: {}", newest.step, printable(newest.message, 300)));
}

void add_events(Page& page, const RunReport& report) {
  std::vector<const telemetry::Event*> shown;
  for (const auto& event : report.events) {
    if (event.level >= Level::kInfo && event.kind != telemetry::event_kind::kCheckpoint) shown.push_back(&event);
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
  add_throughput(page, report);
  add_loss(page, report);
  add_ranks(page, report);
  add_checkpoints(page, report);
  add_events(page, report);
  return page.take();
}

}  // namespace lockstep::report
