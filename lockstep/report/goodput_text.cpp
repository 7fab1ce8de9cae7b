#include "lockstep/report/goodput_text.h"

#include <fmt/format.h>

#include "lockstep/base/units.h"

namespace lockstep::report {
namespace {

constexpr int kBarCells = 30;

std::string percent(double share) { return fmt::format("{:.2f}%", 100.0 * share); }

// What is not useful, enlarged to the bar: the useful part would be all of it.
std::string losses_bar(const sim::Outcome& mean, double full, const TerminalStyle& style) {
  return stacked_bar({{mean.lost, 'L', Ink::kRed},
                      {mean.stalled, 'C', Ink::kBlue},
                      {mean.recovering, 'R', Ink::kYellow},
                      {mean.waiting, 'W', Ink::kCyan},
                      {mean.shrunk, 'S', Ink::kGreen}},
                     full, kBarCells, style);
}

std::string money(double usd) { return usd > 0 ? fmt::format("{:.4g} USD", usd) : std::string("-"); }

}  // namespace

std::string to_text(const sim::GoodputStudy& study, const TerminalStyle& style) {
  double most = 0.0;
  for (const sim::GoodputRow& row : study.rows) most = std::max(most, row.mean.total - row.mean.useful);
  std::vector<std::vector<std::string>> rows = {
      {"choice", "goodput", "5% .. 95%", "interruptions", "lost work", "worst loss", "cost", "where the rest goes"}};
  for (const sim::GoodputRow& row : study.rows) {
    rows.push_back({row.name, percent(row.goodput.median),
                    fmt::format("{} .. {}", percent(row.goodput.low), percent(row.goodput.high)),
                    fmt::format("{:.4g}", row.interruptions.median), format_seconds(row.lost_seconds.median),
                    format_seconds(row.worst_lost_seconds.high), money(row.usd), losses_bar(row.mean, most, style)});
  }
  std::string text =
      inked("Goodput", Ink::kBold, style) +
      fmt::format("  {} samples of {:.4g} days; {}\n", study.samples, study.seconds / 86400.0, study.failures);
  text += table(rows, {1, 3, 4, 5, 6}, 2, style);
  text += "  L lost work  C checkpoint stalls  R recovering  W waiting for repairs  S fewer nodes\n\n";
  text += inked("Nodes down at once", Ink::kBold, style) + "  so many spares are enough\n";
  std::vector<std::vector<std::string>> spares = {{"for", "spares", "5% .. 95%"}};
  const auto add = [&](const char* name, const sim::SparesNeeded& needed) {
    spares.push_back(
        {name, fmt::format("{:.0f}", needed.expected), fmt::format("{:.0f} .. {:.0f}", needed.low, needed.high)});
  };
  add("50% of the time", study.half);
  add("90% of the time", study.ninety);
  add("99% of the time", study.ninety_nine);
  return text + table(spares, {1}, 2, style);
}

std::string to_text(const std::vector<sim::PublishedRun>& runs, const TerminalStyle& style) {
  std::vector<std::vector<std::string>> rows = {{""}};
  for (const char* name : {"nodes, spares", "days", "restarts, published", "restarts, simulated (5% .. 95%)",
                           "time that trained, published", "an interruption cost, published",
                           "goodput, state from disk", "goodput, state from memory"}) {
    rows.push_back({name});
  }
  for (const sim::PublishedRun& run : runs) {
    const sim::NamedFailures& named = *run.named;
    const sim::Quantiles& restarts = run.from_disk.interruptions;
    rows[0].emplace_back(named.name);
    rows[1].push_back(fmt::format("{}, {}", named.nodes, named.spares));
    rows[2].push_back(fmt::format("{:.0f}", named.days));
    rows[3].push_back(fmt::format("{:.0f}", named.published_restarts));
    rows[4].push_back(fmt::format("{:.0f} ({:.0f} .. {:.0f})", restarts.median, restarts.low, restarts.high));
    rows[5].push_back(
        fmt::format("{}{:.0f}%", named.published_share_least ? "over " : "", 100.0 * named.published_share));
    rows[6].push_back(format_seconds(run.published_seconds_per_restart()));
    rows[7].push_back(percent(run.from_disk.goodput.median));
    rows[8].push_back(percent(run.from_memory.goodput.median));
  }
  std::string text = inked("Published runs", Ink::kBold, style) + "\n";
  text += table(rows, {1, 2}, 2, style);
  for (const sim::PublishedRun& run : runs) {
    text += wrapped(fmt::format("  {}: ", run.named->name), fmt::format("{} ({})", run.named->what, run.named->source),
                    100);
  }
  return text;
}

}  // namespace lockstep::report
