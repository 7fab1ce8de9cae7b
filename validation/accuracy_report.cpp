#include "validation/accuracy_report.h"

#include <algorithm>
#include <array>
#include <limits>

#include <fmt/format.h>

#include "validation/scatter.h"

namespace lockstep::validation {
namespace {

using Cells = std::vector<std::vector<std::string>>;

// One table of the report; every writer draws it its own way.
struct Table {
  std::string title;
  std::string about;
  Cells cells;                             // first row is the header
  std::vector<std::size_t> right_aligned;  // columns
};

std::string percent(double value) { return fmt::format("{:.1f}%", 100 * value); }

std::vector<std::string> error_row(const std::string& name, const std::vector<Scored>& runs) {
  const ErrorSummary error = rate_error(runs);
  const IntervalSummary interval = interval_quality(runs);
  return {name,
          std::to_string(error.n),
          percent(error.median),
          percent(error.mean),
          fmt::format("{:+.1f}%", 100 * error.bias),
          interval.n == 0 ? "" : percent(interval.coverage),
          interval.n == 0 ? "" : percent(interval.median_half_width),
          fmt::format("{} {}", percent(error.largest), error.largest_id)};
}

Table error_table(const std::string& title, const std::string& key,
                  const std::vector<std::pair<std::string, std::vector<Scored>>>& groups,
                  const std::vector<Scored>& all) {
  Table table{.title = title, .right_aligned = {1, 2, 3, 4, 5, 6}};
  table.cells.push_back({key, "rows", "median", "mean", "bias", "covered", "half-width", "worst"});
  for (const auto& [name, runs] : groups) {
    if (rate_error(runs).n > 0) table.cells.push_back(error_row(name, runs));
  }
  table.cells.push_back(error_row("all", all));
  return table;
}

std::string figure(const Target& target, double value) {
  return target.percent ? percent(value) : fmt::format("{:.3f}", value);
}

std::string wanted(const Target& target) {
  const double infinity = std::numeric_limits<double>::infinity();
  if (target.most == infinity) return "at least " + figure(target, target.least);
  if (target.least == -infinity) return "at most " + figure(target, target.most);
  return figure(target, target.least) + " to " + figure(target, target.most);
}

Table target_table(const AccuracyReport& report) {
  Table table{.title = "Claims", .about = report.method, .right_aligned = {1}};
  table.cells.push_back({"claim", "reached", "wanted", "holds"});
  for (const Target& target : targets_of(report)) {
    table.cells.push_back({target.what, figure(target, target.reached), wanted(target), target.holds() ? "yes" : "NO"});
  }
  return table;
}

Table rank_table(const std::vector<Scored>& grid) {
  Table table{
      .title = "Ranking in the grid, by (model, GPUs)",
      .about =
          "tau: Kendall's tau-b of the runs that ran; regret: of the configuration predicted fastest "
          "among those predicted to fit (out of memory with at most 25%, the risk counted), 100% where it failed; "
          "expected: the same of the mean over a run and its neighbours (same degrees, half to twice the micro-batch, "
          "with or without ZeRO), and of three: of the best of the first three",
      .right_aligned = {1, 2, 3, 4, 5, 6, 7}};
  table.cells.push_back({"model", "GPUs", "ran", "failed", "tau", "regret", "expected", "of three", "pick", "best"});
  for (const GroupRank& group : rank_groups(grid)) {
    table.cells.push_back({group.model, std::to_string(group.gpus), std::to_string(group.ran),
                           std::to_string(group.failed), group.tau ? fmt::format("{:.3f}", *group.tau) : "",
                           percent(group.regret), percent(group.expected_regret), percent(group.regret_of_three),
                           group.pick, group.best});
  }
  return table;
}

Table memory_table(const std::vector<Scored>& grid) {
  Table table{.title = "Memory in the grid", .about = "peak allocated", .right_aligned = {1, 2, 3, 4}};
  table.cells.push_back({"model", "runs", "median", "mean", "bias", "worst"});
  const auto row = [&](const std::string& name, const std::vector<Scored>& runs) {
    const ErrorSummary error = memory_error(runs);
    if (error.n == 0) return;
    table.cells.push_back({name, std::to_string(error.n), percent(error.median), percent(error.mean),
                           fmt::format("{:+.1f}%", 100 * error.bias),
                           fmt::format("{} {}", percent(error.largest), error.largest_id)});
  };
  for (const auto& [name, runs] : grouped(grid, [](const Scored& run) { return run.model; })) row(name, runs);
  row("all", grid);
  return table;
}

Table fit_table(const std::vector<Scored>& grid) {
  const FitSummary fit = fit_accuracy(grid);
  Table table{.title = "Fits or not, in the grid", .right_aligned = {1, 2, 3}};
  table.about = fmt::format(
      "balanced accuracy {}; {} of the {} failures break a rule of layouts and cannot be memory; {} without a "
      "prediction",
      percent(fit.balanced_accuracy()), fit.cannot_run, fit.failed_and_refused + fit.failed_but_fits, fit.unpredicted);
  table.cells = {
      {"", "predicted to fit", "predicted not to", "right"},
      {"ran", std::to_string(fit.ran_and_fits), std::to_string(fit.ran_but_refused), percent(fit.true_fit_rate())},
      {"failed", std::to_string(fit.failed_but_fits), std::to_string(fit.failed_and_refused),
       percent(fit.true_refusal_rate())}};
  return table;
}

std::vector<Scored> complete_of(std::vector<Scored> rows) {
  std::erase_if(rows, [](const Scored& run) { return !run.complete; });
  return rows;
}

Table left_out_table(const std::vector<HeldOutColumn>& columns, bool complete) {
  Table table{.title = complete ? "Left out of the fit: complete configurations" : "Left out of the fit: all rows",
              .about = complete
                           ? "the model of a source, the source, or every run of its hardware and framework; then so "
                             "many runs of the same source are observed. Sources that are held back are not in it"
                           : "configurations that had to be guessed in part, mixtures of experts and BERT included",
              .right_aligned = {1, 2, 3, 4, 5, 6, 7, 8, 9}};
  table.cells.push_back({"left out", "observed runs", "rows", "bias", "median", "mean", "covered", "half-width",
                         "memory: rows", "median"});
  for (const HeldOutColumn& column : columns) {
    const std::vector<Scored> rows = complete ? complete_of(column.rows) : column.rows;
    const ErrorSummary error = rate_error(rows);
    const ErrorSummary memory = memory_error(rows);
    const IntervalSummary interval = interval_quality(rows);
    table.cells.push_back({column.left_out, std::to_string(column.observed), std::to_string(error.n),
                           fmt::format("{:+.1f}%", 100 * error.bias), percent(error.median), percent(error.mean),
                           percent(interval.coverage), percent(interval.median_half_width), std::to_string(memory.n),
                           memory.n == 0 ? "" : percent(memory.median)});
  }
  return table;
}

std::vector<Table> tables_of(const AccuracyReport& report) {
  const std::vector<Scored>& rates = report.rates;
  std::vector<Table> tables{target_table(report)};
  if (!report.left_out.empty()) {
    tables.push_back(left_out_table(report.left_out, true));
    tables.push_back(left_out_table(report.left_out, false));
  }
  tables.push_back(error_table("Throughput by source", "source",
                               grouped(rates, [](const Scored& run) { return run.source; }), rates));
  tables.push_back(error_table("Throughput by hardware", "hardware",
                               grouped(rates, [](const Scored& run) { return run.hardware; }), rates));
  tables.push_back(error_table("Throughput by scale", "GPUs", by_scale(rates), rates));
  tables.push_back(error_table("Throughput by binding term", "term", grouped(rates, binding_term), rates));
  tables.back().about =
      fmt::format("largest term beside compute, where it takes {:.0f}% of the step or more", 100 * kBindingShare);
  if (report.grid.empty()) return tables;
  tables.push_back(memory_table(report.grid));
  tables.push_back(fit_table(report.grid));
  tables.push_back(rank_table(report.grid));
  return tables;
}

// Tables of one publication share a colour: what stands in brackets tells them apart.
std::string short_source(const Scored& run) { return run.source.substr(0, run.source.find(" (")); }

std::vector<ScatterSeries> series_of(const std::vector<Scored>& runs, const KeyOf& key,
                                     std::optional<double> Scored::*measured,
                                     std::optional<double> Scored::*predicted) {
  std::vector<ScatterSeries> series;
  for (const auto& [name, members] : grouped(runs, key)) {
    ScatterSeries one{.name = name};
    for (const Scored& run : members) {
      if (run.*measured && run.*predicted) one.points.push_back({*(run.*measured), *(run.*predicted), run.id});
    }
    if (!one.points.empty()) series.push_back(std::move(one));
  }
  // Large clouds first, so that they do not hide the small ones.
  std::stable_sort(series.begin(), series.end(),
                   [](const auto& a, const auto& b) { return a.points.size() > b.points.size(); });
  return series;
}

std::string markdown_table(const Table& table) {
  std::string text = fmt::format("\n## {}\n\n", table.title);
  if (!table.about.empty()) text += table.about + ".\n\n";
  for (std::size_t i = 0; i < table.cells.size(); ++i) {
    text += "|";
    for (const std::string& cell : table.cells[i]) text += fmt::format(" {} |", cell);
    text += "\n";
    if (i > 0) continue;
    text += "|";
    for (std::size_t column = 0; column < table.cells[0].size(); ++column) {
      bool right = false;
      for (const std::size_t aligned : table.right_aligned) right |= aligned == column;
      text += right ? "---:|" : "---|";
    }
    text += "\n";
  }
  return text;
}

std::string html_table(const Table& table) {
  std::string text = fmt::format("<h2>{}</h2>\n", escaped(table.title));
  if (!table.about.empty()) text += fmt::format("<p>{}.</p>\n", escaped(table.about));
  text += "<table>\n";
  for (std::size_t i = 0; i < table.cells.size(); ++i) {
    const char* tag = i == 0 ? "th" : "td";
    text += "<tr>";
    for (const std::string& cell : table.cells[i]) text += fmt::format("<{0}>{1}</{0}>", tag, escaped(cell));
    text += "</tr>\n";
  }
  return text + "</table>\n";
}

}  // namespace

namespace {

// The goals of docs/reference/accuracy.md for what the fit has not seen.
struct LeftOutGoal {
  const char* left_out;
  int observed;
  double median, mean, bias;  // at most; bias to either side, 0: no goal
};
constexpr std::array<LeftOutGoal, 4> kLeftOutGoals{{{"source", 0, 0.08, 0.12, 0.05},
                                                    {"source", 1, 0.04, 0.07, 0},
                                                    {"source", 3, 0.03, 0.05, 0},
                                                    {"(hardware, framework)", 0, 0, 0, 0.05}}};
constexpr double kWidestLeftOut = 0.29;

void add_left_out_targets(const std::vector<HeldOutColumn>& columns, std::vector<Target>& targets) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const LeftOutGoal& goal : kLeftOutGoals) {
    for (const HeldOutColumn& column : columns) {
      if (column.left_out != goal.left_out || column.observed != goal.observed) continue;
      const std::vector<Scored> rows = complete_of(column.rows);
      const ErrorSummary error = rate_error(rows);
      const std::string what = fmt::format("{} left out, {} observed: ", goal.left_out, goal.observed);
      if (goal.median > 0) targets.push_back({what + "median error", error.median, -infinity, goal.median});
      if (goal.mean > 0) targets.push_back({what + "mean error", error.mean, -infinity, goal.mean});
      if (goal.bias > 0) targets.push_back({what + "bias", error.bias, -goal.bias, goal.bias});
      if (goal.median == 0 || goal.observed > 0) continue;
      const IntervalSummary interval = interval_quality(rows);
      targets.push_back({what + "inside the 90% interval", interval.coverage, 0.85, 0.95});
      targets.push_back({what + "its median half-width", interval.median_half_width, -infinity, kWidestLeftOut});
    }
  }
}

}  // namespace

std::vector<Target> targets_of(const AccuracyReport& report) {
  const double infinity = std::numeric_limits<double>::infinity();
  const ErrorSummary error = rate_error(report.rates);
  const IntervalSummary interval = interval_quality(report.rates);
  std::vector<Target> targets{
      {"median absolute error of tokens/s/GPU", error.median, -infinity, 0.07},
      {"mean absolute error of tokens/s/GPU", error.mean, -infinity, 0.10},
      {"measurements inside the 90% interval", interval.coverage, 0.85, 0.95},
      {"median half-width of that interval", interval.median_half_width, -infinity, 0.20},
  };
  add_left_out_targets(report.left_out, targets);
  if (report.grid.empty()) return targets;
  const RankSummary ranks = summarise(rank_groups(report.grid));
  targets.push_back({"H100 grid: mean absolute error of memory", memory_error(report.grid).mean, -infinity, 0.07});
  targets.push_back(
      {"H100 grid: fits or not, balanced accuracy", fit_accuracy(report.grid).balanced_accuracy(), 0.90, infinity});
  targets.push_back({"H100 grid: mean Kendall tau per (model, GPUs)", ranks.mean_tau, 0.78, infinity, false});
  targets.push_back({"H100 grid: expected regret of the first pick", ranks.mean_expected_regret, -infinity, 0.08});
  targets.push_back({"H100 grid: expected regret of the best of three", ranks.mean_regret_of_three, -infinity, 0.02});
  targets.push_back({"H100 grid: regret of the first pick as measured", ranks.mean_regret, -infinity, 0.18});
  return targets;
}

std::string to_text(const AccuracyReport& report, const telemetry::TerminalStyle& style) {
  std::string text;
  for (const Table& table : tables_of(report)) {
    text += report::inked(table.title, report::Ink::kBold, style) + "\n";
    if (!table.about.empty()) text += report::wrapped("  ", table.about, style.width);
    text += report::table(table.cells, table.right_aligned, 2, style) + "\n";
  }
  for (const std::string& remark : report.remarks) text += report::wrapped("- ", remark, style.width);
  return text;
}

std::string to_markdown(const AccuracyReport& report, const std::string& picture) {
  std::string text = "# Accuracy\n";
  if (!picture.empty()) text += fmt::format("\n![Predicted against measured]({})\n", picture);
  for (const Table& table : tables_of(report)) text += markdown_table(table);
  if (!report.remarks.empty()) text += "\n## What is not reached, and why\n\n";
  for (const std::string& remark : report.remarks) text += fmt::format("- {}\n", remark);
  return text;
}

std::string to_html(const AccuracyReport& report) {
  std::string text =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Accuracy</title>\n<style>"
      "body{font-family:sans-serif;margin:2em;max-width:75em}table{border-collapse:collapse}"
      "td,th{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:left}</style></head><body>\n"
      "<h1>Accuracy</h1>\n";
  text += rate_picture(report);
  if (!report.grid.empty()) text += memory_picture(report);
  for (const Table& table : tables_of(report)) text += html_table(table);
  if (!report.remarks.empty()) text += "<h2>What is not reached, and why</h2>\n<ul>\n";
  for (const std::string& remark : report.remarks) text += fmt::format("<li>{}</li>\n", escaped(remark));
  if (!report.remarks.empty()) text += "</ul>\n";
  return text + "</body></html>\n";
}

std::string rate_picture(const AccuracyReport& report) {
  return scatter_svg(series_of(report.rates, short_source, &Scored::measured, &Scored::predicted),
                     {.title = "Throughput", .unit = "tokens/s/GPU"});
}

std::string memory_picture(const AccuracyReport& report) {
  return scatter_svg(series_of(
                         report.grid, [](const Scored& run) { return run.model; }, &Scored::measured_memory,
                         &Scored::predicted_memory),
                     {.title = "Memory in the H100 grid", .unit = "GiB"});
}

}  // namespace lockstep::validation
