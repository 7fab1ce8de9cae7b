#include "lockstep/report/canvas/sheet.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "lockstep/base/text.h"
#include "lockstep/report/canvas/lettering.h"

namespace lockstep::report {
namespace {

constexpr double kLeading = 1.28;

// Words of a shell with their quotes: spaces inside '...', "..." and $'...' do not separate.
std::vector<std::string> shell_words(const std::string& line) {
  std::vector<std::string> words{""};
  char quote = 0;
  bool escapes = false;  // a backslash guards the next character
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == ' ' && quote == 0) {
      if (!words.back().empty()) words.emplace_back();
      continue;
    }
    words.back() += c;
    if (c == '\\' && (quote != '\'' || escapes) && i + 1 < line.size()) {
      words.back() += line[++i];
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
      escapes = c == '\'' && i > 0 && line[i - 1] == '$';
    } else if (c == quote) {
      quote = 0, escapes = false;
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

Typeface face_of_cell(std::size_t row, std::size_t column, std::size_t bold_column) {
  return row == 0 || column == bold_column ? Typeface::kBold : Typeface::kRegular;
}

// The widest word of a cell: below it a column can only shrink by breaking words.
double longest_word(const std::string& cell, Typeface face, double size) {
  double widest = 0;
  for (const std::string& word : split(cell, ' ')) widest = std::max(widest, text_width(word, face, size));
  return widest;
}

// What columns need, and an equal part of what is left over. If there is not enough, the widest shrink equally, but not
// below their words while that suffices.
std::vector<double> column_shares(const std::vector<std::vector<std::string>>& rows, double size, double padding,
                                  double width, std::size_t bold_column) {
  const std::size_t columns = rows.empty() ? 0 : rows.front().size();
  std::vector<double> needed(columns, 0.0), least(columns, 0.0);
  for (std::size_t r = 0; r < rows.size(); ++r)
    for (std::size_t c = 0; c < std::min(columns, rows[r].size()); ++c) {
      const Typeface face = face_of_cell(r, c, bold_column);
      needed[c] = std::max(needed[c], text_width(rows[r][c], face, size) + padding + 0.1);
      least[c] = std::max(least[c], longest_word(rows[r][c], face, size) + padding + 0.1);
    }
  const auto sum_of = [](const std::vector<double>& widths) {
    return std::accumulate(widths.begin(), widths.end(), 0.0);
  };
  if (sum_of(least) > width) std::fill(least.begin(), least.end(), 0.0);
  const auto capped = [&](double cap) {
    std::vector<double> widths(columns);
    for (std::size_t c = 0; c < columns; ++c) widths[c] = std::max(std::min(needed[c], cap), least[c]);
    return widths;
  };
  double low = 0, high = width;
  for (int step = 0; step < 50; ++step) {
    const double middle = (low + high) / 2;
    (sum_of(capped(middle)) > width ? high : low) = middle;
  }
  std::vector<double> shares = capped(sum_of(needed) > width ? low : width);
  const double rest = std::max(0.0, width - sum_of(needed)) / static_cast<double>(columns);
  for (double& share : shares) share = (share + rest) / width;
  return shares;
}

}  // namespace

std::vector<std::string> shell_lines(const std::string& line, std::size_t columns) {
  std::vector<std::string> lines{""};
  for (const std::string& word : shell_words(line)) {
    std::string& last = lines.back();
    if (!last.empty() && last.size() + 1 + word.size() + 2 > columns) {
      last += " \\";
      lines.push_back("  " + word);
    } else {
      last += last.empty() ? word : " " + word;
    }
  }
  return lines;
}

void Sheet::heading(const std::string& text) {
  const double size = scaled(kHeadingSize);
  y_ += size * 1.05;
  canvas_.text({x_, y_}, fitted(text, Typeface::kBold, size, width_), {Typeface::kBold, size, Tint::kAccent});
  y_ += scaled(2.8);
  draw_line(canvas_, {x_, y_}, {x_ + width_, y_}, {Tint::kGrid, 0.75});
  y_ += scaled(2);
}

void Sheet::paragraph(const std::string& text, const Lettering& lettering) {
  Lettering scaled_lettering = lettering;
  scaled_lettering.size = scaled(lettering.size);
  for (const std::string& line : broken(text, lettering.face, scaled_lettering.size, width_)) {
    y_ += scaled_lettering.size * kLeading;
    canvas_.text({x_, y_}, line, scaled_lettering);
  }
}

void Sheet::bullets(const std::vector<std::string>& items, bool numbered) {
  const double size = scaled(kTextSize), indent = scaled(9);
  for (std::size_t i = 0; i < items.size(); ++i) {
    y_ += scaled(0.8);
    bool first = true;
    for (const std::string& line : broken(items[i], Typeface::kRegular, size, width_ - indent)) {
      y_ += size * kLeading;
      if (first && numbered) canvas_.text({x_, y_}, fmt::format("{}", i + 1), {Typeface::kBold, size, Tint::kAccent});
      if (first && !numbered) canvas_.circle({x_ + scaled(2.2), y_ - size * 0.3}, scaled(1.2), {Tint::kAccent, {}, 1});
      canvas_.text({x_ + indent, y_}, line, {Typeface::kRegular, size});
      first = false;
    }
  }
}

void Sheet::pairs(const std::vector<std::pair<std::string, std::string>>& rows) {
  const double size = scaled(kTextSize);
  double names = 0;
  for (const auto& [name, value] : rows) names = std::max(names, text_width(name, Typeface::kRegular, size));
  names = std::min(names, width_ * 0.35) + scaled(6);
  for (const auto& [name, value] : rows) {
    bool first = true;
    for (const std::string& line : broken(value, Typeface::kRegular, size, width_ - names)) {
      y_ += size * kLeading;
      if (first)
        canvas_.text({x_, y_}, fitted(name, Typeface::kRegular, size, names - scaled(4)),
                     {Typeface::kRegular, size, Tint::kMuted});
      canvas_.text({x_ + names, y_}, line, {Typeface::kRegular, size});
      first = false;
    }
  }
}

void Sheet::table(const std::vector<std::vector<std::string>>& rows, std::size_t bold_column,
                  const std::vector<std::size_t>& right) {
  const double size = scaled(kTextSize), padding = scaled(3);
  const std::vector<double> shares = column_shares(rows, size, 2 * padding, width_, bold_column);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const bool header = r == 0;
    std::vector<std::vector<std::string>> cells;
    std::size_t lines = 1;
    for (std::size_t c = 0; c < shares.size(); ++c) {
      cells.push_back(broken(c < rows[r].size() ? rows[r][c] : "", face_of_cell(r, c, bold_column), size,
                             shares[c] * width_ - 2 * padding));
      lines = std::max(lines, cells.back().size());
    }
    const double height = size * kLeading * static_cast<double>(lines) + scaled(2.2);
    if (header) canvas_.rectangle({x_, y_, width_, height}, {Tint::kShadeStrong, {}, 1});
    double left = x_;
    for (std::size_t c = 0; c < shares.size(); ++c) {
      const bool at_right = std::find(right.begin(), right.end(), c) != right.end();
      const double x = at_right ? left + shares[c] * width_ - padding : left + padding;
      for (std::size_t l = 0; l < cells[c].size(); ++l) {
        canvas_.text({x, y_ + size * (kLeading * static_cast<double>(l) + 1.05)}, cells[c][l],
                     {face_of_cell(r, c, bold_column), size, header ? Tint::kMuted : Tint::kText,
                      at_right ? Anchor::kEnd : Anchor::kStart});
      }
      left += shares[c] * width_;
    }
    y_ += height;
    draw_line(canvas_, {x_, y_}, {x_ + width_, y_}, {Tint::kGrid, 0.5});
  }
}

void Sheet::code(const std::string& text, bool shell) {
  const double size = scaled(kCodeSize), padding = scaled(4);
  const double room = width_ - 2 * padding;
  const auto columns = static_cast<std::size_t>(std::max(20.0, room / (0.6 * size)));
  std::vector<std::string> lines;
  for (const std::string& line : split(trim(text), '\n')) {
    for (const std::string& piece : shell ? shell_lines(line, columns) : std::vector<std::string>{line}) {
      // Breaking drops the spaces at the front, which mean something in code.
      const std::size_t indent = std::min(piece.find_first_not_of(' '), columns / 2);
      const std::string front(indent == std::string::npos ? 0 : indent, ' ');
      const double left = text_width(front, Typeface::kMono, size);
      for (const std::string& part : broken(piece.substr(front.size()), Typeface::kMono, size, room - left)) {
        lines.push_back(front + part);
      }
    }
  }
  y_ += scaled(2);
  const double height = size * kLeading * static_cast<double>(lines.size()) + 2 * padding;
  canvas_.rectangle({x_, y_, width_, height}, {Tint::kShade, Stroke{Tint::kGrid, 0.5}, 1}, scaled(2));
  double base = y_ + padding + size * 0.95;
  for (const std::string& line : lines) {
    canvas_.text({x_ + padding, base}, line, {Typeface::kMono, size});
    base += size * kLeading;
  }
  y_ += height + scaled(2);
}

}  // namespace lockstep::report
