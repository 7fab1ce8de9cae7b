#include "lockstep/report/run_page/run_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/report/figures.h"
#include "lockstep/report/run_page/blocks.h"
#include "lockstep/report/run_page/words.h"
#include "lockstep/report/study/figures.h"

namespace lockstep::report {
namespace {

using telemetry::RunStatus;

constexpr std::size_t kHeatColumns = 120;

std::string status_badge(RunStatus status) {
  std::string text = telemetry::to_string(status);
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

std::vector<std::string> warnings_of(const RunReport& report) {
  std::vector<std::string> warnings;
  if (report.run.status == RunStatus::kLost) warnings.emplace_back("Its process is gone and did not say why.");
  if (!report.run.exit_reason.empty()) warnings.push_back(printable(report.run.exit_reason, 400));
  if (const std::string missing = missing_text(report); !missing.empty()) warnings.push_back(missing + ".");
  for (const Incident& incident : report.incidents.incidents) {
    if (incident.kind == IncidentKind::kRecords) warnings.push_back(printable(incident.what, 300));
  }
  return warnings;
}

std::string predicted_words(const plan::Interval& interval, const std::function<std::string(double)>& show) {
  if (interval.expected <= 0.0) return "no prediction";
  std::string text = "predicted " + show(interval.expected);
  if (interval.high > interval.low) text += fmt::format(" ({} to {})", show(interval.low), show(interval.high));
  return text;
}

Card rate_card(const RunReport& report) {
  const auto rate = [&](double value) { return value > 0.0 ? format_rate(value, report.unit) : std::string("-"); };
  const double predicted = report.predicted.per_second.expected;
  const std::string difference = difference_words(report.measured_per_second, predicted);
  return {"Throughput",
          rate(report.measured_per_second),
          {predicted_words(report.predicted.per_second, rate), difference == "-" ? "" : difference + " against it"},
          true};
}

Card mfu_card(const RunReport& report) {
  const auto percent = [](double share) { return percent_words(100.0 * share); };
  const std::string label = report.waterfall.measure == Measure::kEfficiency ? "Efficiency (ranks are CPUs)" : "MFU";
  if (report.mfu <= 0.0) return {label, "-", {"no peak of these devices is known"}};
  std::string overall;
  if (report.waterfall.measured) overall = percent(report.waterfall.measured->overall()) + " over the whole time";
  return {label, percent(report.mfu), {predicted_words(report.predicted.mfu, percent), overall}};
}

Card goodput_card(const RunReport& report) {
  const Goodput& goodput = report.goodput;
  if (goodput.useful_seconds <= 0.0) return {"Goodput", "-", {"no steps were recorded"}};
  return {"Goodput",
          percent_words(100.0 * goodput.share()),
          {fmt::format("{} of {} trained", format_seconds(goodput.useful_seconds),
                       format_seconds(goodput.elapsed_seconds))}};
}

Card memory_card(const RunReport& report) {
  const double capacity = report.memory.capacity_bytes();
  return {"Memory, largest rank",
          bytes_words(report.memory.peak_bytes),
          {report.predicted.memory_bytes > 0.0 ? "predicted " + bytes_words(report.predicted.memory_bytes) : "",
           capacity > 0.0 ? "of " + bytes_words(capacity) : ""}};
}

Card loss_card(const RunReport& report) {
  const auto& loss = report.curve(telemetry::metric::kLoss);
  const auto& evaluation = report.curve(telemetry::metric::kEvaluationLoss);
  if (loss.empty()) return {"Loss", "-", {}};
  return {"Loss",
          fmt::format("{:.4f}", loss.back().value),
          {fmt::format("from {:.4f}, after {} steps", loss.front().value, report.last_step),
           evaluation.empty() ? "" : fmt::format("evaluation {:.4f}", evaluation.back().value)}};
}

Card incidents_card(const RunReport& report) {
  double down = 0.0;
  std::int64_t lost = 0, failures = 0;
  for (const Incident& incident : report.incidents.incidents) {
    down += incident.down_seconds;
    lost += incident.lost_steps;
    if (incident.kind == IncidentKind::kFailure) ++failures;
  }
  return {"Incidents",
          std::to_string(report.incidents.incidents.size()),
          {failures > 0 ? fmt::format("{} failure{}, {} down, {} steps done again", failures, failures == 1 ? "" : "s",
                                      format_seconds(down), lost)
                        : "no failure",
           fmt::format("{} checkpoint{} saved", report.incidents.checkpoints.size(),
                       report.incidents.checkpoints.size() == 1 ? "" : "s")}};
}

Front front_of(const RunReport& report) {
  const telemetry::RunRow& run = report.run;
  Front front;
  front.title = "Run: " + printable(run.info.name.empty() ? run.info.id : run.info.name, 120);
  front.badge = status_badge(run.status);
  front.sure = run.status == RunStatus::kDone || run.status == RunStatus::kRunning;
  front.subtitle =
      fmt::format("{} UTC; took {}; {} rank{} over {} on {}; {}", moment(run.info.started_at),
                  format_seconds(std::round(report.goodput.elapsed_seconds)), run.info.world,
                  run.info.world == 1 ? "" : "s", run.info.backend.empty() ? "no backend" : printable(run.info.backend),
                  run.info.host.empty() ? "an unknown host" : printable(run.info.host), printable(run.info.id, 120));
  front.warnings = warnings_of(report);
  if (!report.is_foreign() || report.measured_per_second > 0.0) {
    front.cards = {rate_card(report),   mfu_card(report),  goodput_card(report),
                   memory_card(report), loss_card(report), incidents_card(report)};
  } else {
    front.cards = {memory_card(report), incidents_card(report)};
  }
  return front;
}

}  // namespace

RunPage make_run_page(const telemetry::RunStore& store, const std::string& id,
                      std::optional<diagnose::Diagnosis> diagnosis) {
  RunPage page;
  page.report = make_run_report(store, id);
  page.heat = make_heat_map(store, page.report, kHeatColumns);
  page.diagnosis = std::move(diagnosis);
  return page;
}

std::vector<std::string> repeat_commands(const RunFacts& facts) {
  if (facts.run.info.job_yaml.empty()) return {};
  const std::string id = shell_quoted(facts.run.info.id);
  if (facts.is_foreign()) return {fmt::format("lockstep report {} --job   # the command and its settings", id)};
  return {fmt::format("lockstep report {} --job > again.yaml", id), "lockstep train again.yaml"};
}

Document run_document(const RunPage& page) {
  Document document;
  document.front = front_of(page.report);
  document.made_at = page.report.until;
  add_findings(document.blocks, page);
  add_waterfall(document.blocks, page.report);
  add_curves(document.blocks, page.report);
  add_plan(document.blocks, page.report);
  add_ranks(document.blocks, page);
  add_memory(document.blocks, page.report);
  add_incidents(document.blocks, page.report);
  add_environment(document.blocks, page.report);
  document.footer = fmt::format("run {}; intervals are 90%; the figures as JSON: lockstep report {} --json",
                                printable(page.report.run.info.id, 100), shell_quoted(page.report.run.info.id));
  return document;
}

}  // namespace lockstep::report
