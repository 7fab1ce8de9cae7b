// The recipe as a page of HTML.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/report/canvas/chart.h"
#include "lockstep/report/canvas/front.h"
#include "lockstep/report/canvas/html.h"
#include "lockstep/report/canvas/markup.h"
#include "lockstep/report/canvas/svg_canvas.h"
#include "lockstep/report/recipe/page.h"
#include "lockstep/report/recipe/recipe.h"
#include "lockstep/report/recipe/words.h"

namespace lockstep::report {
namespace {

std::string settings_table(const Recipe& recipe) {
  return markup_table(setting_rows(recipe, recipe.settings.size() + 1), 2);
}

std::string bars_picture(const StudyView& study) {
  const std::vector<Bar> bars = set_back_bars(study.conclusion, 6);
  if (bars.empty()) return "";
  SvgCanvas canvas(320, bars_height(bars.size(), false));
  draw_bars(canvas, {0, 0, 320, bars_height(bars.size(), false)}, "", "%", bars);
  return canvas.inline_svg("What reverting each knob to its default costs, with 95% intervals");
}

std::string left_column(const Recipe& recipe, const StudyView& study) {
  std::string out =
      markup_section("Set this", settings_table(recipe) + markup_paragraph(rest_sentence(recipe), "muted"));
  std::string paste;
  for (const Snippet& snippet : recipe.paste) paste += markup_code(snippet.text, snippet.title != "configuration", 62);
  if (!paste.empty()) out += markup_section("Ready to paste", paste);
  return out + markup_section("What matters most", markup_list(recipe.matters, "ol") + bars_picture(study));
}

std::string right_column(const Recipe& recipe) {
  std::string out = markup_section("When it does not apply", markup_list(recipe.limits, "ul"));
  out += markup_section("It holds for", markup_pairs(holds_for(recipe)) + markup_list(recipe.expiry, "ul"));
  std::string recheck = markup_paragraph(recheck_sentence(recipe));
  for (const std::string& command : recipe.recheck) recheck += markup_code(command, true, 44);
  out += markup_section("Re-check in ten minutes", recheck);
  std::string indifferent;
  for (const std::string& sentence : indifference(recipe)) indifferent += markup_paragraph(sentence);
  out += markup_section("What does not matter", indifferent);
  return out + markup_section("How it was found", markup_list(recipe.made, "ul"));
}

}  // namespace

std::string recipe_body(const Recipe& recipe, const StudyView& study) {
  std::string out = markup_front(front_of(recipe));
  out += fmt::format("<div class=\"columns\"><div>\n{}</div><div>\n{}</div></div>\n", left_column(recipe, study),
                     right_column(recipe));
  return out + fmt::format("<footer>{}</footer>\n", escape_markup(footer_of(recipe)));
}

std::string to_html(const Recipe& recipe, const StudyView& study) {
  return html_page(fmt::format("Recipe: {}", recipe.name), recipe_body(recipe, study),
                   std::min(1.0, 0.96 * page_scale(recipe, study)));
}

}  // namespace lockstep::report
