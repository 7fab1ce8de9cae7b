#include "lockstep/diagnose/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "lockstep/base/text.h"

namespace lockstep::diagnose {
namespace {

using nlohmann::json;
using telemetry::TerminalStyle;

constexpr int kBarCells = 20;
constexpr std::size_t kMostRanksShown = 8;
constexpr std::size_t kLongestSentence = 2000;

// "ranks 0-3, 6": runs of neighbours as ranges.
std::string ranks_text(const std::vector<int>& ranks) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    parts.push_back(last > i + 1 ? fmt::format("{}-{}", ranks[i], ranks[last]) : std::to_string(ranks[i]));
    i = last > i + 1 ? last + 1 : i + 1;
    if (parts.size() == kMostRanksShown && i < ranks.size()) {
      parts.push_back(fmt::format("... ({} in all)", ranks.size()));
      break;
    }
  }
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", join(parts, ", "));
}

std::string bar(double percent, const TerminalStyle& style) {
  const int filled = std::clamp(static_cast<int>(std::lround(percent / 100.0 * kBarCells)), 1, kBarCells);
  std::string text;
  for (int i = 0; i < kBarCells; ++i) {
    const bool full = i < filled;
    text += style.unicode ? (full ? "█" : "░") : (full ? "#" : ".");
  }
  return style.colour ? fmt::format("\x1b[31m{}\x1b[0m", text) : text;
}

std::string bold(const std::string& text, const TerminalStyle& style) {
  return style.colour ? fmt::format("\x1b[1m{}\x1b[0m", text) : text;
}

// `text` behind `label`, broken at spaces to the width of the terminal. Texts quote files and jobs of others.
void add_paragraph(std::string& page, const std::string& label, const std::string& text, const TerminalStyle& style) {
  constexpr std::size_t kIndent = 13;
  const auto width = static_cast<std::size_t>(std::max(style.width, 60));
  std::string line = fmt::format("   {:<10}", label);
  bool empty = true;
  for (const std::string& word : split(printable(text, kLongestSentence), ' ')) {
    if (!empty && line.size() + 1 + word.size() > width) {
      page += line + "\n";
      line = std::string(kIndent, ' ');
      empty = true;
    }
    line.append(empty ? "" : " ").append(word);
    empty = false;
  }
  page += line + "\n";
}

void add_finding(std::string& page, std::size_t number, const Finding& finding, const TerminalStyle& style) {
  std::string head = fmt::format("{}. {}", number, to_string(finding.cause));
  if (!finding.ranks.empty()) head += ", " + ranks_text(finding.ranks);
  page += fmt::format("\n{}\n", bold(head, style));
  std::string cost = fmt::format("{} {:.0f}% of the step", bar(finding.cost_percent, style), finding.cost_percent);
  if (finding.cost_usd_per_hour > 0.0) cost += fmt::format(", ${:.2f} per hour", finding.cost_usd_per_hour);
  page += fmt::format("   {:<10}{}\n", "costs", cost);
  add_paragraph(page, "because", fmt::format("{} ({:.0f}% sure)", finding.evidence, finding.confidence * 100.0), style);
  if (!finding.fix.empty()) add_paragraph(page, "do", finding.fix, style);
  if (finding.gain_percent >= 0.5) {
    add_paragraph(page, "gain", fmt::format("about {:.0f}% more per second", finding.gain_percent), style);
  }
}

json finding_json(const Finding& finding) {
  return {{"cause", to_string(finding.cause)},
          {"confidence", finding.confidence},
          {"cost_percent", finding.cost_percent},
          {"cost_usd_per_hour", finding.cost_usd_per_hour > 0.0 ? json(finding.cost_usd_per_hour) : json()},
          {"ranks", finding.ranks},
          {"evidence", printable(finding.evidence, kLongestSentence)},
          {"fix", printable(finding.fix, kLongestSentence)},
          {"gain_percent", finding.gain_percent > 0.0 ? json(finding.gain_percent) : json()}};
}

bool is_sound(const Finding& finding) {
  return std::isfinite(finding.cost_percent) && std::isfinite(finding.confidence) &&
         std::isfinite(finding.gain_percent) && std::isfinite(finding.cost_usd_per_hour);
}

// Many files of one folder and kind share a line.
void add_read(std::string& page, const std::vector<ReadFile>& read) {
  constexpr std::ptrdiff_t kMostLines = 4;
  const auto folder = [](const ReadFile& file) { return std::filesystem::path(file.file).parent_path(); };
  for (auto at = read.begin(); at != read.end();) {
    auto end = std::find_if(at, read.end(),
                            [&](const ReadFile& file) { return file.kind != at->kind || folder(file) != folder(*at); });
    int ranks = 0;
    std::string name;
    if (end - at > kMostLines) {
      for (auto file = at; file != end; ++file) ranks += file->ranks;
      name = fmt::format("{}: {} files", folder(*at).string(), end - at);
    } else {
      end = at + 1;
      ranks = at->ranks;
      name = at->file;
    }
    page += fmt::format("{} {}", at->kind, printable(name, 200));
    if (ranks > 0) page += fmt::format(", {} rank{}", ranks, ranks == 1 ? "" : "s");
    page += "\n";
    at = end;
  }
}

}  // namespace

void settle(Diagnosis& diagnosis) {
  std::erase_if(diagnosis.findings,
                [](const Finding& f) { return !is_sound(f) || f.cost_percent < kWorthSayingPercent; });
  for (Finding& finding : diagnosis.findings) {
    finding.cost_percent = std::min(finding.cost_percent, 100.0);
    finding.confidence = std::clamp(finding.confidence, 0.0, 1.0);
    std::sort(finding.ranks.begin(), finding.ranks.end());
    finding.ranks.erase(std::unique(finding.ranks.begin(), finding.ranks.end()), finding.ranks.end());
  }
  std::stable_sort(diagnosis.findings.begin(), diagnosis.findings.end(), [](const Finding& a, const Finding& b) {
    return a.cost_percent != b.cost_percent ? a.cost_percent > b.cost_percent : a.confidence > b.confidence;
  });
  if (diagnosis.findings.size() > kMostFindings) diagnosis.findings.resize(kMostFindings);
}

std::string to_text(const Diagnosis& diagnosis, const TerminalStyle& style) {
  std::string page;
  add_read(page, diagnosis.read);
  if (diagnosis.findings.empty()) {
    return page + fmt::format("healthy: nothing that costs more than {:.0f}% of the step\n", kWorthSayingPercent);
  }
  for (std::size_t i = 0; i < diagnosis.findings.size(); ++i) add_finding(page, i + 1, diagnosis.findings[i], style);
  return page;
}

json to_json(const Diagnosis& diagnosis) {
  json read = json::array(), findings = json::array();
  for (const ReadFile& file : diagnosis.read) {
    read.push_back({{"file", printable(file.file, kLongestSentence)}, {"kind", file.kind}, {"ranks", file.ranks}});
  }
  for (const Finding& finding : diagnosis.findings) findings.push_back(finding_json(finding));
  return {{"schema", "lockstep.diagnosis/1"}, {"read", read}, {"findings", findings}};
}

}  // namespace lockstep::diagnose
