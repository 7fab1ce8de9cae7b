// The recipe as one printed page.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "lockstep/base/text.h"
#include "lockstep/report/canvas/chart.h"
#include "lockstep/report/canvas/front.h"
#include "lockstep/report/canvas/lettering.h"
#include "lockstep/report/canvas/pdf.h"
#include "lockstep/report/canvas/sheet.h"
#include "lockstep/report/recipe/page.h"
#include "lockstep/report/recipe/recipe.h"
#include "lockstep/report/recipe/words.h"
#include "lockstep/report/study/plots.h"

namespace lockstep::report {
namespace {

constexpr double kMargin = 34;
constexpr double kBottom = kA4Height - kMargin - 9;  // a line of footer is below
constexpr double kPlotHeight = 135;                  // from which on a plot is worth its place

// What fits when the page is full of knobs: lists are cut, and say so.
struct Limits {
  std::size_t settings = 1000, paste_characters = 1u << 20, bullets = 1000;
};

struct PageLayout {
  double scale = 1;
  bool matters_right = false;  // where the table of settings is long
  Limits limits;
};

void draw_matters(Canvas& canvas, Sheet& sheet, const Recipe& recipe, const StudyView& study,
                  const PageLayout& layout) {
  sheet.space(4);
  sheet.heading("What matters most");
  sheet.bullets(cut(recipe.matters, layout.limits.bullets), true);
  std::vector<Bar> bars = set_back_bars(study.conclusion, 6);
  if (bars.empty()) return;
  if (layout.matters_right)  // a narrow column; the table has the intervals
    for (Bar& bar : bars) bar.figure = bar.figure.substr(0, bar.figure.find(" ("));
  sheet.space(6);
  const double height = bars_height(bars.size(), false);
  draw_bars(canvas, {sheet.x(), sheet.y(), sheet.width(), height}, "", "%", bars);
  sheet.space(height / layout.scale);
}

double draw_left(Canvas& canvas, const Recipe& recipe, const StudyView& study, const Box& box,
                 const PageLayout& layout) {
  const Limits& limits = layout.limits;
  Sheet sheet(canvas, {box.x, box.y}, box.width, layout.scale);
  sheet.heading("Set this");
  sheet.table(setting_rows(recipe, limits.settings));
  const std::string rest = rest_sentence(recipe);
  if (!rest.empty()) sheet.paragraph(rest, {Typeface::kRegular, 7.4, Tint::kMuted});
  sheet.space(6);
  if (!recipe.paste.empty()) sheet.heading("Ready to paste");
  for (const Snippet& snippet : recipe.paste) {
    const bool too_long = snippet.text.size() > limits.paste_characters;
    // Half a command would be worse than none.
    sheet.code(too_long ? fmt::format("# {}: too long for this page; lockstep recipe {}", snippet.title, recipe.study)
                        : snippet.text,
               snippet.title != "configuration" && !too_long);
  }
  if (!layout.matters_right) draw_matters(canvas, sheet, recipe, study, layout);
  return sheet.y();
}

double draw_right(Canvas& canvas, const Recipe& recipe, const StudyView& study, const Box& box,
                  const PageLayout& layout) {
  const Limits& limits = layout.limits;
  Sheet sheet(canvas, {box.x, box.y}, box.width, layout.scale);
  sheet.heading("When it does not apply");
  sheet.bullets(cut(recipe.limits, limits.bullets));
  sheet.space(6);
  sheet.heading("It holds for");
  sheet.pairs(holds_for(recipe));
  sheet.space(2);
  sheet.bullets(recipe.expiry);
  sheet.space(6);
  sheet.heading("Re-check in ten minutes");
  sheet.paragraph(recheck_sentence(recipe), {Typeface::kRegular, 7.8});
  for (const std::string& command : recipe.recheck) sheet.code(command, true);
  sheet.space(4);
  sheet.heading("What does not matter");
  for (const std::string& sentence : indifference(recipe)) sheet.paragraph(sentence, {Typeface::kRegular, 7.8});
  sheet.space(6);
  sheet.heading("How it was found");
  sheet.bullets(cut(recipe.made, limits.bullets));
  if (layout.matters_right) draw_matters(canvas, sheet, recipe, study, layout);
  return sheet.y();
}

// Returns where the lower of the two columns ends.
double draw_page(Canvas& canvas, const Recipe& recipe, const StudyView& study, const PageLayout& layout) {
  const double top = draw_front(canvas, front_of(recipe), {kMargin, kMargin}, kA4Width - 2 * kMargin);
  constexpr double kGutter = 16;
  const double width = kA4Width - 2 * kMargin - kGutter;
  const Box left{kMargin, top, width * 0.575, 0}, right{kMargin + width * 0.575 + kGutter, top, width * 0.425, 0};
  const double bottom =
      std::max(draw_left(canvas, recipe, study, left, layout), draw_right(canvas, recipe, study, right, layout));
  const double y = kA4Height - kMargin + 6;
  draw_line(canvas, {kMargin, y - 9}, {kA4Width - kMargin, y - 9}, {Tint::kGrid, 0.5});
  canvas.text({kMargin, y}, fitted(footer_of(recipe), Typeface::kRegular, 6.8, kA4Width - 2 * kMargin),
              {Typeface::kRegular, 6.8, Tint::kMuted});
  return bottom;
}

// What is left of the page shows how the study went.
void draw_rest(Canvas& canvas, const StudyView& study, double y) {
  if (kBottom - y < kPlotHeight || study.trials.empty()) return;
  const double height = std::min(kBottom - y - 8, 230.0);
  Sheet heading(canvas, {kMargin, y + 4}, kA4Width - 2 * kMargin, 1);
  heading.heading("How the search went");
  draw_convergence_in(canvas, {kMargin, heading.y() + 2, kA4Width - 2 * kMargin, height - (heading.y() - y)}, study);
}

double bottom_of(const Recipe& recipe, const StudyView& study, const PageLayout& layout) {
  PdfPage page(kA4Width, kA4Height);
  return draw_page(page, recipe, study, layout);
}

// Large with a plot below, then ordinary without, then as small as it must be; then lists are cut.
PageLayout choose_layout(const Recipe& recipe, const StudyView& study) {
  constexpr double kSmallestScale = 0.66, kLargestScale = 1.1;
  // The more even of the two arrangements, when it leaves that much room.
  const auto arranged = [&](double scale, const Limits& limits, double room) -> std::optional<PageLayout> {
    const PageLayout left{scale, false, limits}, right{scale, true, limits};
    const double left_bottom = bottom_of(recipe, study, left), right_bottom = bottom_of(recipe, study, right);
    if (std::min(left_bottom, right_bottom) + room > kBottom) return std::nullopt;
    return left_bottom <= right_bottom ? left : right;
  };
  for (double scale = kLargestScale; scale >= 1.0; scale -= 0.02)
    if (const auto layout = arranged(scale, {}, kPlotHeight)) return *layout;
  for (double scale = 1.0; scale > kSmallestScale; scale -= 0.02)
    if (const auto layout = arranged(scale, {}, 0)) return *layout;
  for (const Limits& tighter : {Limits{30, 1500, 8}, Limits{20, 700, 5}})
    if (const auto layout = arranged(kSmallestScale, tighter, 0)) return *layout;
  return {kSmallestScale, true, {12, 300, 3}};
}

}  // namespace

double page_scale(const Recipe& recipe, const StudyView& study) { return choose_layout(recipe, study).scale; }

std::string to_pdf(const Recipe& recipe, const StudyView& study) {
  PdfPage page(kA4Width, kA4Height);
  draw_rest(page, study, draw_page(page, recipe, study, choose_layout(recipe, study)));
  return make_pdf({&page}, {fmt::format("Recipe: {}", recipe.name), subtitle_of(recipe), recipe.made_at});
}

}  // namespace lockstep::report
