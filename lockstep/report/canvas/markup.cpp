#include "lockstep/report/canvas/markup.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/report/canvas/sheet.h"
#include "lockstep/report/canvas/svg_canvas.h"

namespace lockstep::report {

std::string markup_list(const std::vector<std::string>& items, const char* tag) {
  std::string out = fmt::format("<{}>", tag);
  for (const std::string& item : items) out += fmt::format("<li>{}</li>", escape_markup(item));
  return out + fmt::format("</{}>\n", tag);
}

std::string markup_section(const std::string& heading, const std::string& markup) {
  return fmt::format("<section><h2>{}</h2>\n{}</section>\n", escape_markup(heading), markup);
}

std::string markup_paragraph(const std::string& text, const char* style) {
  if (text.empty()) return "";
  return fmt::format("<p{}>{}</p>\n", *style != 0 ? fmt::format(" class=\"{}\"", style) : "", escape_markup(text));
}

std::string markup_code(const std::string& text, bool shell, std::size_t columns) {
  std::vector<std::string> lines;
  for (const std::string& line : split(trim(text), '\n')) {
    if (!shell) lines.push_back(line);
    for (std::string& piece : shell ? shell_lines(line, columns) : std::vector<std::string>{}) lines.push_back(piece);
  }
  return fmt::format("<pre>{}</pre>\n", escape_markup(join(lines, "\n")));
}

std::string markup_table(const std::vector<std::vector<std::string>>& rows, std::size_t bold_column,
                         const std::vector<std::size_t>& right) {
  std::string out = "<table>";
  bool header = true;
  for (const std::vector<std::string>& row : rows) {
    out += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) {
      std::string style = !header && i == bold_column ? "best" : "";
      if (std::find(right.begin(), right.end(), i) != right.end()) style += style.empty() ? "n" : " n";
      out +=
          fmt::format("<{}{}>{}</{}>", header ? "th" : "td", style.empty() ? "" : fmt::format(" class=\"{}\"", style),
                      escape_markup(row[i]), header ? "th" : "td");
    }
    out += "</tr>\n";
    header = false;
  }
  return out + "</table>\n";
}

std::string markup_pairs(const std::vector<std::pair<std::string, std::string>>& rows) {
  std::string out = "<dl>";
  for (const auto& [name, value] : rows) {
    out += fmt::format("<dt>{}</dt><dd>{}</dd>", escape_markup(name), escape_markup(value));
  }
  return out + "</dl>\n";
}

}  // namespace lockstep::report
