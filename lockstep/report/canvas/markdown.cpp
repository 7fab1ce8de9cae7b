#include "lockstep/report/canvas/markdown.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::report {

std::string markdown_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("\\`*_[]<>|#~").find(c) != std::string_view::npos) out += '\\';
    out += c == '\n' || c == '\r' ? ' ' : c;
  }
  return out;
}

std::string markdown_code(const std::string& text, const char* language) {
  std::size_t longest = 2, run = 0;
  for (const char c : text) {
    run = c == '`' ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  const std::string fence(longest + 1, '`');
  return fmt::format("{}{}\n{}{}{}\n\n", fence, language, text, text.ends_with('\n') ? "" : "\n", fence);
}

std::string markdown_list(const std::vector<std::string>& items, bool numbered) {
  std::string out;
  for (std::size_t i = 0; i < items.size(); ++i)
    out += fmt::format("{} {}\n", numbered ? fmt::format("{}.", i + 1) : "-", markdown_text(items[i]));
  return out + "\n";
}

std::string markdown_table(const std::vector<std::vector<std::string>>& rows, const std::vector<std::size_t>& right,
                           std::size_t bold_column) {
  std::string out;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t c = 0; c < rows[r].size(); ++c) {
      const char* const bold = r > 0 && c == bold_column && !rows[r][c].empty() ? "**" : "";
      out += fmt::format("| {}{}{} ", bold, markdown_text(rows[r][c]), bold);
    }
    out += "|\n";
    for (std::size_t c = 0; r == 0 && c < rows[r].size(); ++c)
      out += std::find(right.begin(), right.end(), c) == right.end() ? "|---" : "|---:";
    if (r == 0) out += "|\n";
  }
  return out + "\n";
}

}  // namespace lockstep::report
