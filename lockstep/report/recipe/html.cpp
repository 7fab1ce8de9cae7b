// The recipe as a page of HTML.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/report/canvas/chart.h"
#include "lockstep/report/canvas/html.h"
#include "lockstep/report/canvas/sheet.h"
#include "lockstep/report/canvas/svg_canvas.h"
#include "lockstep/report/recipe/page.h"
#include "lockstep/report/recipe/recipe.h"
#include "lockstep/report/recipe/words.h"

namespace lockstep::report {
namespace {

std::string list(const std::vector<std::string>& items, const char* tag) {
  std::string out = fmt::format("<{}>", tag);
  for (const std::string& item : items) out += fmt::format("<li>{}</li>", escape_markup(item));
  return out + fmt::format("</{}>\n", tag);
}

std::string section(const std::string& heading, const std::string& body) {
  return fmt::format("<section><h2>{}</h2>\n{}</section>\n", escape_markup(heading), body);
}

std::string paragraph(const std::string& text, const char* style = "") {
  if (text.empty()) return "";
  return fmt::format("<p{}>{}</p>\n", *style != 0 ? fmt::format(" class=\"{}\"", style) : "", escape_markup(text));
}

// Broken as a shell takes it: browsers would break inside of --flags.
std::string code(const std::string& text, bool shell, std::size_t columns) {
  std::vector<std::string> lines;
  for (const std::string& line : split(trim(text), '\n')) {
    if (!shell) lines.push_back(line);
    for (std::string& piece : shell ? shell_lines(line, columns) : std::vector<std::string>{}) lines.push_back(piece);
  }
  return fmt::format("<pre>{}</pre>\n", escape_markup(join(lines, "\n")));
}

std::string card(const std::string& label, const std::string& figure, const std::vector<std::string>& details,
                 bool strong) {
  std::string out = fmt::format("<div class=\"card{}\"><div class=\"label\">{}</div><div class=\"figure\">{}</div>",
                                strong ? " strong" : "", escape_markup(label), escape_markup(figure));
  for (const std::string& detail : details) out += fmt::format("<div class=\"detail\">{}</div>", escape_markup(detail));
  return out + "</div>\n";
}

std::string cards(const Recipe& recipe) {
  std::string out = "<div class=\"cards\">\n";
  out += card(recipe.simulated ? "Predicted gain over the default" : "Gain over the default", recipe.gain,
              {recipe.gain_detail}, true);
  out += card("Throughput with this setting", recipe.throughput, {recipe.throughput_detail, recipe.baseline}, false);
  if (recipe.check) {
    out +=
        card("Re-checked " + day(recipe.check->checked_at), check_word(*recipe.check), {recipe.check->sentence}, false);
  } else {
    out += card("Use it until", day(recipe.expires_at), {"or until a version below changes; then re-check"}, false);
  }
  return out + "</div>\n";
}

std::string settings_table(const Recipe& recipe) {
  std::string out = "<table>";
  bool header = true;
  for (const std::vector<std::string>& row : setting_rows(recipe, recipe.settings.size() + 1)) {
    out += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string cell = escape_markup(row[i]);
      out += header ? fmt::format("<th>{}</th>", cell)
                    : fmt::format("<td{}>{}</td>", i == 2 ? " class=\"best\"" : "", cell);
    }
    out += "</tr>\n";
    header = false;
  }
  return out + "</table>\n";
}

std::string bars_picture(const StudyView& study) {
  const std::vector<Bar> bars = set_back_bars(study.conclusion, 6);
  if (bars.empty()) return "";
  SvgCanvas canvas(320, bars_height(bars.size(), false));
  draw_bars(canvas, {0, 0, 320, bars_height(bars.size(), false)}, "", "%", bars);
  return canvas.inline_svg("What reverting each knob to its default costs, with 95% intervals");
}

std::string left_column(const Recipe& recipe, const StudyView& study) {
  std::string out = section("Set this", settings_table(recipe) + paragraph(rest_sentence(recipe), "muted"));
  std::string paste;
  for (const Snippet& snippet : recipe.paste) paste += code(snippet.text, snippet.title != "configuration", 62);
  out += section("Ready to paste", paste);
  return out + section("What matters most", list(recipe.matters, "ol") + bars_picture(study));
}

std::string right_column(const Recipe& recipe) {
  std::string out = section("When it does not apply", list(recipe.limits, "ul"));
  std::string versions = "<dl>";
  for (const auto& [name, value] : recipe.holds_for)
    versions += fmt::format("<dt>{}</dt><dd>{}</dd>", escape_markup(name), escape_markup(value));
  if (recipe.holds_for.empty()) versions += "<dt>versions</dt><dd>not recorded</dd>";
  out += section("It holds for", versions + "</dl>\n" + list(recipe.expiry, "ul"));
  std::string recheck = paragraph(recheck_sentence(recipe));
  for (const std::string& command : recipe.recheck) recheck += code(command, true, 44);
  out += section("Re-check in ten minutes", recheck);
  std::string indifferent;
  for (const std::string& sentence : indifference(recipe)) indifferent += paragraph(sentence);
  out += section("What does not matter", indifferent);
  return out + section("How it was found", list(recipe.made, "ul"));
}

}  // namespace

std::string recipe_body(const Recipe& recipe, const StudyView& study) {
  const char* badge = recipe.simulated ? "PREDICTION" : recipe.provisional ? "PROVISIONAL" : "MEASURED";
  std::string out =
      fmt::format("<header><h1>Recipe: {}</h1><span class=\"badge{}\">{}</span></header>\n<p class=\"muted\">{}</p>\n",
                  escape_markup(recipe.name), recipe.simulated || recipe.provisional ? " unsure" : "", badge,
                  escape_markup(subtitle_of(recipe)));
  for (const std::string& warning : recipe.warnings) out += paragraph(warning, "warning");
  out += cards(recipe);
  out += fmt::format("<div class=\"columns\"><div>\n{}</div><div>\n{}</div></div>\n", left_column(recipe, study),
                     right_column(recipe));
  return out + fmt::format("<footer>{}</footer>\n", escape_markup(footer_of(recipe)));
}

std::string to_html(const Recipe& recipe, const StudyView& study) {
  return html_page(fmt::format("Recipe: {}", recipe.name), recipe_body(recipe, study),
                   std::min(1.0, 0.96 * page_scale(recipe, study)));
}

}  // namespace lockstep::report
