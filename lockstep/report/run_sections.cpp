#include "lockstep/report/run_sections.h"

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

constexpr int kWidest = 100;

std::string percent(const std::optional<Descent>& descent, Loss loss) {
  return descent ? percent_words(-100.0 * descent->share(loss)) : "-";
}

std::string total(const std::optional<Descent>& descent, double (Descent::*value)() const) {
  return descent ? fmt::format("{:.1f}%", 100.0 * ((*descent).*value)()) : "-";
}

// Columns of the waterfall, in the order they are printed.
class WaterfallRows {
 public:
  WaterfallRows(const Waterfall& waterfall, const TerminalStyle& style) : waterfall_(waterfall), style_(style) {
    has_price_ = waterfall.usd_per_day > 0.0;
    const int used = 2 + kName + 10 + 10 + 12 + (has_price_ ? 15 : 0) + 2;
    cells_ = std::clamp(std::min(style.width, kWidest) - used, 0, 40);
  }

  std::string header() const {
    std::string text = "  " + left("", kName) + right("predicted", 10) + right("measured", 10) + right("per step", 12);
    if (has_price_) text += right("USD per day", 15);
    return inked(text, Ink::kDim, style_) + "\n";
  }
  // A level that was reached: everything up to it is left.
  std::string level(const std::string& name, const std::string& predicted, const std::string& measured, double share,
                    double seconds) {
    const std::string bar = cells_ > 0 ? "  " + placed_bar(0, share, 1, cells_, Ink::kGreen, style_) : "";
    return row(inked(left(name, kName), Ink::kBold, style_), predicted, measured, seconds, "", bar);
  }
  std::string loss(Loss loss, double& level) {
    const Descent& side = shown();
    const double share = side.share(loss);
    level -= share;
    const std::string bar =
        cells_ > 0 ? "  " + placed_bar(std::max(0.0, level), std::max(0.0, share), 1, cells_, Ink::kRed, style_) : "";
    const std::string usd = dollars(side.of_time(loss));
    return row(left(describe(loss), kName), percent(waterfall_.predicted, loss), percent(waterfall_.measured, loss),
               side.seconds[static_cast<std::size_t>(loss)], usd, bar);
  }
  const Descent& shown() const { return waterfall_.measured ? *waterfall_.measured : *waterfall_.predicted; }

 private:
  static constexpr int kName = 28;

  std::string dollars(double of_time) const { return format_dollars(of_time * waterfall_.usd_per_day); }
  std::string row(const std::string& name, const std::string& predicted, const std::string& measured, double seconds,
                  const std::string& usd, const std::string& bar) const {
    std::string text = "  " + name + right(predicted, 10) + right(measured, 10) + right(format_seconds(seconds), 12);
    if (has_price_) text += right(usd, 15);
    return text + bar + "\n";
  }

  const Waterfall& waterfall_;
  const TerminalStyle& style_;
  bool has_price_ = false;
  int cells_ = 0;
};

std::string seconds_or_dash(double value) { return value > 0.0 ? format_seconds(value) : "-"; }

struct RankColumn {
  const char* name;
  double PhaseSeconds::*field;
};
constexpr RankColumn kRankColumns[] = {{"step", &PhaseSeconds::step},       {"compute", &PhaseSeconds::compute},
                                       {"comm", &PhaseSeconds::comm},       {"wait", &PhaseSeconds::wait},
                                       {"data", &PhaseSeconds::data},       {"optim", &PhaseSeconds::optimizer},
                                       {"ckpt", &PhaseSeconds::checkpoint}, {"host", &PhaseSeconds::host}};

bool is_recorded(const RunFacts& facts, double PhaseSeconds::*field) {
  return std::any_of(facts.ranks.begin(), facts.ranks.end(),
                     [&](const RankFacts& rank) { return std::abs(rank.mean.*field) >= 1e-7; });
}

// Which of `count` rows are shown: all, or the first of `order`, ascending again.
std::vector<std::size_t> chosen(const std::vector<Standing>& standings, std::size_t most) {
  std::vector<std::size_t> order(standings.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  if (order.size() > most) {
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return standings[a].slowdown > standings[b].slowdown; });
    order.resize(most);
  }
  return order;
}

constexpr int kMark = 11;  // columns of "straggler"

std::string rank_table(const RunFacts& facts, const std::vector<Standing>& standings,
                       const std::vector<RankColumn>& columns, std::size_t most, const TerminalStyle& style) {
  const bool memory =
      std::any_of(facts.ranks.begin(), facts.ranks.end(), [](const RankFacts& rank) { return rank.peak_bytes > 0.0; });
  const bool slower = !columns.empty() && facts.ranks.size() > 1;
  std::vector<std::vector<std::string>> rows(1);
  rows[0].emplace_back("rank");
  for (const RankColumn& column : columns) rows[0].emplace_back(column.name);
  if (slower) rows[0].emplace_back("vs median");
  if (memory) rows[0].emplace_back("memory");
  std::vector<std::size_t> right_aligned(rows[0].size());
  for (std::size_t i = 0; i < right_aligned.size(); ++i) right_aligned[i] = i;
  rows[0].emplace_back("");
  for (const std::size_t i : chosen(standings, most)) {
    const RankFacts& rank = facts.ranks[i];
    std::vector<std::string> row{std::to_string(rank.rank)};
    for (const RankColumn& column : columns) row.push_back(seconds_or_dash(rank.mean.*column.field));
    if (slower) row.push_back(rank.steps > 0 ? fmt::format("{:+.1f}%", 100.0 * standings[i].slowdown) : "-");
    if (memory) row.push_back(rank.peak_bytes > 0.0 ? format_bytes(rank.peak_bytes) : "-");
    row.push_back(standings[i].straggler ? inked("straggler", Ink::kYellow, style) : "");
    rows.push_back(std::move(row));
  }
  return table(rows, right_aligned, 2, style);
}

std::string clock_of(double time) { return moment(time).substr(11); }

std::string ranks_list(const std::vector<int>& ranks) {
  if (ranks.empty()) return "";
  std::vector<std::string> names;
  for (std::size_t i = 0; i < ranks.size() && i < 6; ++i) names.push_back(std::to_string(ranks[i]));
  if (ranks.size() > names.size()) names.push_back(fmt::format("{} more", ranks.size() - names.size()));
  return fmt::format(" rank{} {}", ranks.size() == 1 ? "" : "s", join(names, ", "));
}

std::string cost_of(const Incident& incident) {
  std::vector<std::string> parts;
  if (incident.down_seconds > 0.0) parts.push_back(format_seconds(incident.down_seconds) + " down");
  if (incident.lost_steps > 0) {
    parts.push_back(fmt::format("{} step{} done again", incident.lost_steps, incident.lost_steps == 1 ? "" : "s"));
  }
  if (incident.cost_percent > 0.0) parts.push_back(fmt::format("costs {:.1f}%", incident.cost_percent));
  if (incident.kind == IncidentKind::kAlert) parts.push_back(incident.ended_at > 0.0 ? "over" : "goes on");
  return parts.empty() ? "" : " (" + join(parts, ", ") + ")";
}

Ink ink_of(telemetry::Level level) {
  if (level == telemetry::Level::kError) return Ink::kRed;
  return level == telemetry::Level::kWarning ? Ink::kYellow : Ink::kPlain;
}

// Broken to the width, each line in the ink: a colour that goes over a line break breaks pages.
std::string inked_lines(const std::string& first, const std::string& text, Ink ink, const TerminalStyle& style) {
  std::string out;
  const std::string broken = wrapped(first, text, std::min(style.width, kWidest));
  for (const std::string& line : split(std::string_view(broken).substr(0, broken.size() - 1), '\n')) {
    out += inked(line, ink, style) + "\n";
  }
  return out;
}

}  // namespace

std::string waterfall_text(const Waterfall& waterfall, const TerminalStyle& style) {
  if (!waterfall.predicted && !waterfall.measured) return "";
  WaterfallRows rows(waterfall, style);
  const Descent& side = rows.shown();
  std::string text = rows.header();
  text += rows.level("peak", waterfall.predicted ? "100.0%" : "-", waterfall.measured ? "100.0%" : "-", 1.0,
                     side.step_seconds);
  double level = 1.0;
  bool outside = false;
  for (std::size_t i = 0; i < kLosses; ++i) {
    const Loss loss = static_cast<Loss>(i);
    if (is_outside_of_steps(loss) && !outside) {
      outside = true;
      text += rows.level(measure_title(waterfall.measure), total(waterfall.predicted, &Descent::mfu),
                         total(waterfall.measured, &Descent::mfu), side.mfu(), side.ideal_seconds);
      level = side.mfu();
    }
    if (is_worth_a_row(waterfall, loss)) text += rows.loss(loss, level);
  }
  if (is_worth_a_row(waterfall, Loss::kRestarts) || is_worth_a_row(waterfall, Loss::kOutside)) {
    text += rows.level("over the whole time", total(waterfall.predicted, &Descent::overall),
                       total(waterfall.measured, &Descent::overall), side.overall(), side.ideal_seconds);
  }
  const int width = std::min(style.width, kWidest);
  if (const std::string note = measure_note(waterfall); !note.empty()) text += wrapped("  ", note, width);
  if (!waterfall.has_phases && waterfall.measured) {
    text += wrapped("  ", "Only whole steps were recorded: what is lost in them is all in `host and other`.", width);
  }
  if (waterfall.split_by_plan && waterfall.measured) {
    text += wrapped("  ", "No spans were kept: communication is split between its kinds as the plan predicts.", width);
  }
  return text;
}

std::string ranks_text(const RunFacts& facts, const std::vector<Standing>& standings, std::size_t most,
                       const TerminalStyle& style) {
  if (facts.ranks.empty()) return "";
  std::vector<RankColumn> columns;
  for (const RankColumn& column : kRankColumns) {
    if (is_recorded(facts, column.field)) columns.push_back(column);
  }
  std::string text = rank_table(facts, standings, columns, most, style);
  // The last ones matter least where there is no room for all.
  while (columns.size() > 2 && telemetry::display_width(text.substr(0, text.find('\n'))) + kMark > style.width) {
    columns.pop_back();
    text = rank_table(facts, standings, columns, most, style);
  }
  if (facts.ranks.size() > most) {
    text += fmt::format("  the {} slowest of {} ranks; `--json` has all\n", most, facts.ranks.size());
  }
  return text;
}

std::string usage_text(const std::vector<UsageOfRank>& usage, std::size_t most, const TerminalStyle& style) {
  if (usage.empty()) return "";
  const bool gpu =
      std::any_of(usage.begin(), usage.end(), [](const UsageOfRank& rank) { return rank.gpu_memory_bytes > 0.0; });
  std::vector<std::vector<std::string>> rows{{"rank", "CPU", "resident"}};
  if (gpu) rows[0].insert(rows[0].end(), {"GPU", "GPU memory"});
  for (std::size_t i = 0; i < usage.size() && i < most; ++i) {
    rows.push_back({std::to_string(usage[i].rank), fmt::format("{:.0f}%", usage[i].cpu_percent),
                    format_bytes(usage[i].resident_bytes)});
    if (gpu)
      rows.back().insert(rows.back().end(),
                         {fmt::format("{:.0f}%", usage[i].gpu_percent), format_bytes(usage[i].gpu_memory_bytes)});
  }
  std::string text = table(rows, {0, 1, 2, 3, 4}, 2, style);
  if (usage.size() > most) text += fmt::format("  the first {} of {} ranks; `--json` has all\n", most, usage.size());
  return text;
}

std::string memory_text(const MemoryTerms& memory, std::size_t most_ranks, const TerminalStyle& style) {
  if (!memory.predicted && memory.ranks.empty()) return "";
  std::string text;
  const int cells = std::clamp(std::min(style.width, kWidest) - 34, 10, 60);
  const double largest = std::max(memory.predicted ? memory.predicted->total() : 0.0, memory.peak_bytes);
  const bool near = memory.capacity_bytes() < 4 * largest;  // else bars would be too short to read
  const double full = near ? std::max(largest, memory.capacity_bytes()) : largest;
  if (memory.predicted) {
    constexpr char kLetters[] = "PGOABx";
    constexpr Ink kInks[] = {Ink::kBlue, Ink::kCyan, Ink::kGreen, Ink::kYellow, Ink::kPlain, Ink::kDim};
    std::vector<Segment> parts;
    std::vector<std::string> words;
    for (std::size_t i = 0; i < std::size(kMemoryTerms); ++i) {
      const double bytes = (*memory.predicted).*kMemoryTerms[i].bytes;
      parts.push_back({bytes, kLetters[i], kInks[i]});
      words.push_back(fmt::format("{} {} {}", inked(std::string(1, kLetters[i]), kInks[i], style), kMemoryTerms[i].name,
                                  format_bytes(bytes)));
    }
    text += "  " + left("predicted", 12) + stacked_bar(parts, full, cells, style) + " " +
            format_bytes(memory.predicted->total()) + "\n";
    for (std::size_t i = 0; i < words.size(); i += 3) {
      const std::size_t end = std::min(i + 3, words.size());
      std::string line = "  " + left("", 12);
      for (std::size_t word = i; word < end; ++word) line += left(words[word], 24);
      text += line + "\n";
    }
  }
  for (std::size_t i = 0; i < memory.ranks.size() && i < most_ranks; ++i) {
    const MemoryOfRank& rank = memory.ranks[i];
    text += "  " + left(fmt::format("rank {}", rank.rank), 12) +
            placed_bar(0, rank.peak_bytes, full, cells, Ink::kGreen, style) + " " + format_bytes(rank.peak_bytes) +
            "\n";
  }
  if (memory.ranks.size() > most_ranks) {
    text += fmt::format("  the first {} of {} ranks; `--json` has all\n", most_ranks, memory.ranks.size());
  }
  if (memory.capacity_bytes() > 0.0) {
    text += "  " + left("capacity", 12) + format_bytes(memory.capacity_bytes()) + " per rank\n";
  }
  return text;
}

std::string incidents_text(const Incidents& incidents, std::size_t most, const TerminalStyle& style) {
  std::string text;
  const std::vector<Incident>& all = incidents.incidents;
  const std::size_t first = all.size() - std::min(all.size(), most);
  if (first > 0) text += fmt::format("  ({} earlier ones; `--json` has all)\n", first);
  for (std::size_t i = first; i < all.size(); ++i) {
    const Incident& incident = all[i];
    const std::string begin = fmt::format("  {} ", clock_of(incident.began_at));
    std::string words = to_string(incident.kind);
    if (incident.step >= 0) words += fmt::format(" step {}", incident.step);
    words += ranks_list(incident.ranks) + ": " + printable(incident.what, 300) + cost_of(incident);
    text += inked_lines(begin, words, ink_of(incident.level), style);
    const std::string indent(static_cast<std::size_t>(telemetry::display_width(begin)) + 2, ' ');
    for (const std::string& detail : incident.details) {
      text += inked_lines(indent, printable(detail, 300), Ink::kDim, style);
    }
    if (!incident.fix.empty()) text += inked_lines(indent + "do: ", printable(incident.fix, 300), Ink::kPlain, style);
  }
  return text;
}

std::string goodput_text(const Goodput& goodput, const TerminalStyle& style) {
  if (goodput.elapsed_seconds <= 0.0 || goodput.useful_seconds <= 0.0) return "";
  const std::pair<const char*, double> parts[] = {{"checkpoint stalls", goodput.checkpoint_seconds},
                                                  {"steps done again", goodput.lost_seconds},
                                                  {"recovery", goodput.recovery_seconds},
                                                  {"start", goodput.start_seconds},
                                                  {"between steps and at the end", goodput.other_seconds}};
  std::vector<std::string> rest;
  for (const auto& [name, seconds] : parts) {
    if (seconds >= 0.0005 * goodput.elapsed_seconds) {
      rest.push_back(fmt::format("{} {:.1f}%", name, 100.0 * seconds / goodput.elapsed_seconds));
    }
  }
  std::string words = fmt::format("{:.1f}% of {}", 100.0 * goodput.share(), format_seconds(goodput.elapsed_seconds));
  if (!rest.empty()) words += "; the rest: " + join(rest, ", ");
  return wrapped("  " + left("goodput", 12), words, std::min(style.width, kWidest));
}

}  // namespace lockstep::report
