#include "lockstep/report/terminal/draw.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/enum_names.h"
#include "lockstep/base/text.h"
#include "lockstep/telemetry/progress.h"

namespace lockstep::report {
namespace {

const char* code_of(Ink ink) { return named<Ink::kCyan>(ink, "", "1", "2", "31", "32", "33", "34", "36"); }

std::string repeated(const std::string& glyph, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += glyph;
  return text;
}

std::string empty_cells(int count, const TerminalStyle& style) {
  return inked(repeated(style.unicode ? "·" : ".", count), Ink::kDim, style);
}

int cell_of(double value, double full, int cells) {
  return full > 0 ? std::clamp(static_cast<int>(std::lround(value / full * cells)), 0, cells) : 0;
}

}  // namespace

std::string inked(const std::string& text, Ink ink, const TerminalStyle& style) {
  if (!style.colour || ink == Ink::kPlain || text.empty()) return text;
  return fmt::format("\033[{}m{}\033[0m", code_of(ink), text);
}

std::string stacked_bar(const std::vector<Segment>& parts, double full, int cells, const TerminalStyle& style) {
  double sum = 0;
  for (const Segment& part : parts) sum += part.value;
  const bool over = sum > full;
  const double scale = over ? sum : full;
  const int mark = over ? std::min(cell_of(full, scale, cells), cells - 1) : -1;
  std::string text;
  double so_far = 0;
  int column = 0;
  for (const Segment& part : parts) {
    so_far += part.value;
    const int end = cell_of(so_far, scale, cells);
    const std::string glyph = style.colour && style.unicode ? "█" : std::string(1, part.letter);
    while (column < end) {
      const int until = column <= mark && mark < end ? mark : end;
      text += inked(repeated(glyph, until - column), part.ink, style);
      if (until == mark) text += inked("|", Ink::kBold, style);
      column = until == mark ? mark + 1 : until;
    }
  }
  return text + empty_cells(cells - column, style);
}

std::string placed_bar(double before, double value, double full, int cells, Ink ink, const TerminalStyle& style) {
  int start = cell_of(before, full, cells);
  int end = cell_of(before + value, full, cells);
  if (value > 0 && end == start) {
    start = std::min(start, cells - 1);
    end = start + 1;
  }
  return empty_cells(start, style) + inked(repeated(style.unicode ? "█" : "#", end - start), ink, style) +
         empty_cells(cells - end, style);
}

std::string left(const std::string& text, int columns) {
  const int missing = columns - telemetry::display_width(text);
  return missing > 0 ? text + std::string(static_cast<std::size_t>(missing), ' ') : text;
}

std::string right(const std::string& text, int columns) {
  const int missing = columns - telemetry::display_width(text);
  return missing > 0 ? std::string(static_cast<std::size_t>(missing), ' ') + text : text;
}

std::string table(const std::vector<std::vector<std::string>>& rows, const std::vector<std::size_t>& right_aligned,
                  int indent, const TerminalStyle& style) {
  std::vector<int> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], telemetry::display_width(row[i]));
  }
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string line(static_cast<std::size_t>(indent), ' ');
    for (std::size_t i = 0; i < rows[r].size(); ++i) {
      const bool flush_right = std::count(right_aligned.begin(), right_aligned.end(), i) > 0;
      const bool last = i + 1 == rows[r].size();
      std::string cell = flush_right ? right(rows[r][i], widths[i]) : last ? rows[r][i] : left(rows[r][i], widths[i]);
      line += r == 0 ? inked(cell, Ink::kDim, style) : cell;
      if (!last) line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string wrapped(const std::string& first, const std::string& text, int width) {
  const std::string indent(static_cast<std::size_t>(telemetry::display_width(first)), ' ');
  std::string out, line = first;
  bool empty = true;
  for (const std::string& word : split(text, ' ')) {
    if (!empty && telemetry::display_width(line) + 1 + telemetry::display_width(word) > width) {
      out += line + "\n";
      line = indent;
      empty = true;
    }
    line += (empty ? "" : " ") + word;
    empty = false;
  }
  return out + line + "\n";
}

}  // namespace lockstep::report
