#include "lockstep/report/run_page/blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/report/figures.h"
#include "lockstep/report/run_page/words.h"
#include "lockstep/report/study/figures.h"

namespace lockstep::report {
namespace {

constexpr std::size_t kMostRanks = 64, kMostIncidents = 60;
constexpr double kCurveHeight = 136;

using Rows = std::vector<std::vector<std::string>>;

std::vector<std::size_t> all_but_first(std::size_t columns) {
  std::vector<std::size_t> right;
  for (std::size_t i = 1; i < columns; ++i) right.push_back(i);
  return right;
}

// ---- waterfall

std::vector<std::string> loss_row(const Waterfall& waterfall, Loss loss) {
  const auto percent = [&](const std::optional<Descent>& side) {
    return side ? percent_words(-100.0 * side->share(loss)) : "-";
  };
  const auto seconds = [&](const std::optional<Descent>& side) {
    return side ? seconds_words(side->seconds[static_cast<std::size_t>(loss)]) : "-";
  };
  std::vector<std::string> row{describe(loss), percent(waterfall.predicted), percent(waterfall.measured),
                               seconds(waterfall.predicted), seconds(waterfall.measured)};
  if (waterfall.usd_per_day > 0.0) {
    const auto& side = waterfall.measured ? waterfall.measured : waterfall.predicted;
    row.push_back(dollars_words(side->of_time(loss) * waterfall.usd_per_day, true));
  }
  return row;
}

std::vector<std::string> level_row(const Waterfall& waterfall, const std::string& name,
                                   double (Descent::*value)() const) {
  const auto percent = [&](const std::optional<Descent>& side) {
    return side ? percent_words(100.0 * ((*side).*value)()) : "-";
  };
  const auto seconds = [](const std::optional<Descent>& side) {
    return side ? seconds_words(side->ideal_seconds) : std::string("-");
  };
  std::vector<std::string> row{name, percent(waterfall.predicted), percent(waterfall.measured),
                               seconds(waterfall.predicted), seconds(waterfall.measured)};
  if (waterfall.usd_per_day > 0.0) row.emplace_back("");
  return row;
}

Table waterfall_table(const Waterfall& waterfall) {
  Table table;
  table.bold_column = 2;
  table.rows = {{"", "predicted, of peak", "measured, of peak", "predicted, per step", "measured, per step"}};
  if (waterfall.usd_per_day > 0.0) table.rows[0].emplace_back("USD per day");
  table.right = all_but_first(table.rows[0].size());
  for (std::size_t i = 0; i < kLosses; ++i) {
    const Loss loss = static_cast<Loss>(i);
    if (loss == Loss::kRestarts) {
      table.rows.push_back(level_row(waterfall, measure_title(waterfall.measure), &Descent::mfu));
    }
    if (is_worth_a_row(waterfall, loss)) table.rows.push_back(loss_row(waterfall, loss));
  }
  table.rows.push_back(level_row(waterfall, "over the whole time", &Descent::overall));
  return table;
}

// ---- curves

Picture curve_picture(const RunReport& report, const std::string& metric, const CurveStyle& style,
                      const std::vector<telemetry::Point>& second = {}) {
  const std::vector<telemetry::Point>& points = report.curve(metric);
  return {style.title, "", kCurveHeight,
          [points, second, style](Canvas& canvas, const Box& box) { draw_curve(canvas, box, points, second, style); }};
}

// ---- ranks

struct RankColumn {
  const char* name;
  double PhaseSeconds::*field;
};
constexpr RankColumn kRankColumns[] = {{"step", &PhaseSeconds::step},
                                       {"compute", &PhaseSeconds::compute},
                                       {"comm", &PhaseSeconds::comm},
                                       {"of it waiting", &PhaseSeconds::wait},
                                       {"data", &PhaseSeconds::data},
                                       {"optimizer", &PhaseSeconds::optimizer},
                                       {"checkpoint", &PhaseSeconds::checkpoint},
                                       {"host", &PhaseSeconds::host}};

Table rank_table(const RunReport& report) {
  std::vector<RankColumn> columns;
  for (const RankColumn& column : kRankColumns) {
    const auto is_there = [&](const RankFacts& rank) { return rank.mean.*column.field > 0.0; };
    if (std::any_of(report.ranks.begin(), report.ranks.end(), is_there)) columns.push_back(column);
  }
  Table table;
  table.rows.resize(1);
  table.rows[0] = {"rank"};
  for (const RankColumn& column : columns) table.rows[0].emplace_back(column.name);
  table.rows[0].insert(table.rows[0].end(), {"vs median", "peak memory"});
  table.right = all_but_first(table.rows[0].size());
  for (std::size_t i = 0; i < report.ranks.size() && i < kMostRanks; ++i) {
    const RankFacts& rank = report.ranks[i];
    std::vector<std::string> row{fmt::format("{}{}", rank.rank, report.standings[i].straggler ? " (straggler)" : "")};
    for (const RankColumn& column : columns) row.push_back(seconds_words(rank.mean.*column.field));
    row.push_back(rank.steps > 0 ? fmt::format("{:+.1f}%", 100.0 * report.standings[i].slowdown) : "-");
    row.push_back(bytes_words(rank.peak_bytes));
    table.rows.push_back(std::move(row));
  }
  return table;
}

Table usage_table(const std::vector<UsageOfRank>& usage) {
  Table table;
  table.rows = {{"rank", "CPU, of one core", "resident", "GPU", "GPU memory"}};
  table.right = all_but_first(5);
  for (std::size_t i = 0; i < usage.size() && i < kMostRanks; ++i) {
    const bool gpu = usage[i].gpu_memory_bytes > 0.0;
    table.rows.push_back({std::to_string(usage[i].rank), fmt::format("{:.0f}%", usage[i].cpu_percent),
                          bytes_words(usage[i].resident_bytes),
                          gpu ? fmt::format("{:.0f}%", usage[i].gpu_percent) : "-",
                          bytes_words(usage[i].gpu_memory_bytes)});
  }
  return table;
}

// Several lines, each fit to be shown.
std::string printable_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (const std::string& line : split(trim(text), '\n')) lines.push_back(printable(line, 4000));
  return join(lines, "\n");
}

// ---- incidents

std::string ranks_words(const std::vector<int>& ranks) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < ranks.size() && i < 8; ++i) names.push_back(std::to_string(ranks[i]));
  if (ranks.size() > names.size()) names.push_back(fmt::format("{} more", ranks.size() - names.size()));
  return join(names, ", ");
}

std::vector<std::string> incident_row(const Incident& incident, double started) {
  std::string what = printable(incident.what, 300);
  for (const std::string& detail : incident.details) what += "; " + printable(detail, 200);
  if (!incident.fix.empty()) what += ". To do: " + printable(incident.fix, 300);
  return {"+" + format_seconds(std::max(0.0, incident.began_at - started)),
          to_string(incident.kind),
          incident.step >= 0 ? std::to_string(incident.step) : "-",
          ranks_words(incident.ranks),
          seconds_words(incident.down_seconds),
          incident.lost_steps > 0 ? std::to_string(incident.lost_steps) : "-",
          what};
}

std::string goodput_sentence(const Goodput& goodput) {
  const auto part = [&](double seconds) { return percent_words(100.0 * seconds / goodput.elapsed_seconds); };
  return fmt::format(
      "Of {}: {} trained, {} checkpoint stalls, {} steps done again, {} recovery, {} start, {} between steps and at "
      "the "
      "end.",
      format_seconds(goodput.elapsed_seconds), part(goodput.useful_seconds), part(goodput.checkpoint_seconds),
      part(goodput.lost_seconds), part(goodput.recovery_seconds), part(goodput.start_seconds),
      part(goodput.other_seconds));
}

}  // namespace

void add_findings(std::vector<Block>& blocks, const RunPage& page) {
  if (!page.diagnosis) return;
  blocks.emplace_back(Heading{"What holds it back"});
  if (page.diagnosis->findings.empty()) {
    blocks.emplace_back(Paragraph{"`lockstep diagnose` finds nothing that is worth changing."});
    return;
  }
  Table table;
  table.rows = {{"cause", "costs", "sure", "evidence", "what to do"}};
  table.right = {1, 2};
  for (const diagnose::Finding& finding : page.diagnosis->findings) {
    std::string cause(lockstep::to_string(finding.cause));
    std::replace(cause.begin(), cause.end(), '_', ' ');
    if (!finding.ranks.empty()) cause += " (ranks " + ranks_words(finding.ranks) + ")";
    table.rows.push_back({cause, percent_words(finding.cost_percent), percent_words(100.0 * finding.confidence),
                          printable(finding.evidence, 500), printable(finding.fix, 500)});
  }
  blocks.emplace_back(std::move(table));
}

void add_waterfall(std::vector<Block>& blocks, const RunReport& report) {
  const Waterfall& waterfall = report.waterfall;
  if (!waterfall.measured && !waterfall.predicted) return;
  blocks.emplace_back(Heading{waterfall.measure == Measure::kComputing
                                  ? "Where the time of a step goes"
                                  : "From peak to " + measure_title(waterfall.measure)});
  if (const std::string note = measure_note(waterfall); !note.empty()) blocks.emplace_back(Paragraph{note, true});
  blocks.emplace_back(Pictures{
      {{"Waterfall from the peak to what was achieved, predicted and measured", "", waterfall_height(waterfall),
        [waterfall](Canvas& canvas, const Box& box) { draw_waterfall(canvas, box, waterfall); }}}});
  blocks.emplace_back(waterfall_table(waterfall));
  std::string words = fmt::format("Measured over {} steps, the mean of the ranks.", waterfall.steps);
  if (!waterfall.has_phases) words += " Only whole steps were recorded: what is lost in them is all in the last loss.";
  if (waterfall.split_by_plan) words += " No spans were kept: communication is split as the plan predicts.";
  blocks.emplace_back(Paragraph{words, true});
}

void add_curves(std::vector<Block>& blocks, const RunReport& report) {
  Pictures pictures{{}, true};
  const auto add = [&](const std::string& metric, const CurveStyle& style,
                       const std::vector<telemetry::Point>& second = {}) {
    if (report.curve(metric).size() > 1) pictures.pictures.push_back(curve_picture(report, metric, style, second));
  };
  using namespace telemetry;
  add(std::string(metric::kLoss), {"Loss", ""}, report.curve(metric::kEvaluationLoss));
  add(report.unit + "_per_second", {"Throughput", report.unit + "/s", 1.0, report.predicted.per_second, true});
  add(std::string(metric::kMfu), {"MFU", "%", 100.0, report.predicted.mfu, true});
  add(std::string(metric::kEfficiency), {"Efficiency", "%", 100.0, report.predicted.mfu, true});
  add(std::string(metric::kGradientNorm), {"Gradient norm", ""});
  const double memory = report.predicted.memory_bytes;
  add(std::string(metric::kMemoryBytes),
      {"Peak memory of the first rank", "GiB", 1.0 / kGiB, {memory, memory, memory}, true});
  add(std::string(metric::kStepSeconds), {"Step time", "s", 1.0, report.predicted.step_seconds, true});
  if (pictures.pictures.empty()) return;
  blocks.emplace_back(Heading{"Curves"});
  blocks.emplace_back(std::move(pictures));
}

void add_plan(std::vector<Block>& blocks, const RunReport& report) {
  if (!report.plan.is_object()) return;
  blocks.emplace_back(Heading{"Plan and actual"});
  Table table;
  table.bold_column = 3;
  table.rows = {{"", "predicted", "90% interval", "measured", "difference"}};
  table.right = all_but_first(5);
  const auto add = [&](const std::string& name, const plan::Interval& interval, double measured,
                       const std::function<std::string(double)>& show) {
    if (interval.expected <= 0.0 && measured <= 0.0) return;
    const bool band = interval.high > interval.low;
    table.rows.push_back({name, interval.expected > 0.0 ? show(interval.expected) : "-",
                          band ? fmt::format("{} to {}", show(interval.low), show(interval.high)) : "-",
                          measured > 0.0 ? show(measured) : "-", difference_words(measured, interval.expected)});
  };
  const PredictedBand& band = report.predicted;
  const double step = report.waterfall.measured ? report.waterfall.measured->step_seconds : 0.0;
  add("step", band.step_seconds, step, seconds_words);
  add(report.unit + "/s", band.per_second, report.measured_per_second, format_count);
  add(report.waterfall.measure == Measure::kEfficiency ? "efficiency" : "MFU", band.mfu, report.mfu,
      [](double share) { return percent_words(100.0 * share); });
  const double memory = band.memory_bytes;
  add("memory, largest rank", {memory, memory, memory}, report.memory.peak_bytes, bytes_words);
  if (report.typed && report.typed->best.checkpoint) {
    const double goodput = report.typed->best.checkpoint->goodput;
    add("goodput", {goodput, goodput, goodput}, report.goodput.share(),
        [](double share) { return percent_words(100.0 * share); });
  }
  if (table.rows.size() > 1) blocks.emplace_back(std::move(table));
  if (!report.typed) return;
  const plan::Plan& plan = *report.typed;
  Pairs pairs;
  pairs.rows = {{"model", printable(plan.model.name, 100)},
                {"cluster", printable(plan.cluster.name, 100)},
                {"layout", plan::to_string(plan.best.layout)},
                {"batch", describe_batch(plan.best.batch, plan.best.layout)}};
  if (!plan.profile.empty()) pairs.rows.emplace_back("profile", printable(plan.profile, 200));
  blocks.emplace_back(std::move(pairs));
}

void add_ranks(std::vector<Block>& blocks, const RunPage& page) {
  const RunReport& report = page.report;
  const bool foreign = report.steps() == 0 && !report.usage.empty();
  if (report.ranks.empty() && !foreign) return;
  blocks.emplace_back(Heading{"Ranks"});
  if (!page.heat.steps.empty() && page.heat.ranks.size() > 1) {
    const HeatMap heat = page.heat;
    blocks.emplace_back(Pictures{{{heat.what, "", heat_height(heat),
                                   [heat](Canvas& canvas, const Box& box) { draw_heat(canvas, box, heat); }}}});
  }
  blocks.emplace_back(foreign ? usage_table(report.usage) : rank_table(report));
  const std::size_t all = foreign ? report.usage.size() : report.ranks.size();
  if (all > kMostRanks) {
    blocks.emplace_back(Paragraph{fmt::format("The first {} of {} ranks; the JSON has all.", kMostRanks, all), true});
  }
}

void add_memory(std::vector<Block>& blocks, const RunReport& report) {
  const MemoryTerms& memory = report.memory;
  if (!memory.predicted && memory.ranks.empty()) return;
  blocks.emplace_back(Heading{"Memory by term"});
  blocks.emplace_back(Pictures{{{"Memory of a rank by term, and what ranks held", "", memory_height(memory),
                                 [memory](Canvas& canvas, const Box& box) { draw_memory(canvas, box, memory); }}}});
  if (!memory.predicted) return;
  Table table;
  table.rows = {{}, {}};
  for (const MemoryTerm& term : kMemoryTerms) {
    table.rows[0].emplace_back(term.name);
    table.rows[1].push_back(bytes_words((*memory.predicted).*term.bytes));
  }
  table.rows[0].insert(table.rows[0].end(), {"predicted total", "measured peak", "capacity"});
  table.rows[1].insert(table.rows[1].end(), {bytes_words(memory.predicted->total()), bytes_words(memory.peak_bytes),
                                             bytes_words(memory.capacity_bytes())});
  blocks.emplace_back(std::move(table));
}

void add_incidents(std::vector<Block>& blocks, const RunReport& report) {
  if (report.goodput.elapsed_seconds <= 0.0) return;
  blocks.emplace_back(Heading{"Incidents and goodput"});
  const Goodput goodput = report.goodput;
  const Incidents incidents = report.incidents;
  const double started = report.run.info.started_at;
  blocks.emplace_back(Pictures{{{"Time line of the run", "", kTimeLineHeight, [=](Canvas& canvas, const Box& box) {
                                   draw_time_line(canvas, box, goodput, incidents, started);
                                 }}}});
  if (goodput.useful_seconds > 0.0) blocks.emplace_back(Paragraph{goodput_sentence(goodput)});
  if (incidents.incidents.empty()) return;
  Table table;
  table.rows = {{"when", "kind", "step", "ranks", "down", "done again", "what"}};
  const std::size_t count = incidents.incidents.size(), first = count - std::min(count, kMostIncidents);
  for (std::size_t i = first; i < count; ++i) table.rows.push_back(incident_row(incidents.incidents[i], started));
  blocks.emplace_back(std::move(table));
  if (first > 0) blocks.emplace_back(Paragraph{fmt::format("{} earlier ones; the JSON has all.", first), true});
}

void add_environment(std::vector<Block>& blocks, const RunReport& report) {
  const telemetry::RunInfo& info = report.run.info;
  blocks.emplace_back(Heading{"Environment"});
  Pairs pairs;
  pairs.rows = {{"run", printable(info.id, 120)}, {"host", printable(info.host, 120)}};
  if (!report.run.tags.empty()) pairs.rows.emplace_back("tags", printable(join(report.run.tags, ", "), 300));
  if (info.versions.is_object()) {
    for (const auto& [name, version] : info.versions.items()) {
      pairs.rows.emplace_back(printable(name),
                              printable(version.is_string() ? version.get<std::string>() : version.dump(), 200));
    }
  }
  blocks.emplace_back(std::move(pairs));
  if (const std::vector<std::string> commands = repeat_commands(report); !commands.empty()) {
    blocks.emplace_back(Heading{"Do it again"});
    blocks.emplace_back(Code{join(commands, "\n"), true});
    blocks.emplace_back(Heading{"The job"});
    blocks.emplace_back(Code{printable_lines(info.job_yaml), false});
  }
}

}  // namespace lockstep::report
