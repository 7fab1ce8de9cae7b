// The recipe as one printed page.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/report/chart.h"
#include "lockstep/report/lettering.h"
#include "lockstep/report/pdf.h"
#include "lockstep/report/recipe.h"
#include "lockstep/report/recipe_page.h"
#include "lockstep/report/recipe_words.h"
#include "lockstep/report/sheet.h"

namespace lockstep::report {
namespace {

constexpr double kMargin = 34;
constexpr double kGutter = 16;
constexpr double kFooter = 18;
constexpr double kSmallestScale = 0.66;

void draw_card(Canvas& canvas, const Box& box, const std::string& label, const std::string& figure,
               const std::vector<std::string>& details, bool strong) {
  canvas.rectangle(box, {strong ? Tint::kAccent : Tint::kShade, {}, 1}, 4);
  const Tint ink = strong ? Tint::kPaper : Tint::kText, faint = strong ? Tint::kPaper : Tint::kMuted;
  const double inner = box.width - 18, left = box.x + 9;
  canvas.text({left, box.y + 13}, fitted(label, Typeface::kRegular, 7.5, inner), {Typeface::kRegular, 7.5, faint});
  double size = 19;
  while (size > 10 && text_width(figure, Typeface::kBold, size) > inner) size -= 0.5;
  canvas.text({left, box.y + 33}, fitted(figure, Typeface::kBold, size, inner), {Typeface::kBold, size, ink});
  double y = box.y + 44;
  for (const std::string& detail : details) {
    for (const std::string& line : broken(detail, Typeface::kRegular, 7, inner)) {
      if (y > box.bottom() - 3) return;
      canvas.text({left, y}, line, {Typeface::kRegular, 7, faint});
      y += 8.6;
    }
  }
}

double draw_head(Canvas& canvas, const Recipe& recipe) {
  const double width = kA4Width - 2 * kMargin;
  const std::string badge = recipe.simulated ? "PREDICTION" : recipe.provisional ? "PROVISIONAL" : "MEASURED";
  const double badge_width = text_width(badge, Typeface::kBold, 8) + 14;
  canvas.text({kMargin, kMargin + 14}, fitted("Recipe: " + recipe.name, Typeface::kBold, 17, width - badge_width - 10),
              {Typeface::kBold, 17});
  const bool sure = !recipe.simulated && !recipe.provisional;
  canvas.rectangle({kA4Width - kMargin - badge_width, kMargin + 1, badge_width, 15},
                   {sure ? Tint::kAccent : Tint::kSecond, {}, 1}, 3);
  canvas.text({kA4Width - kMargin - badge_width / 2, kMargin + 11.4}, badge,
              {Typeface::kBold, 8, Tint::kPaper, Anchor::kMiddle});
  canvas.text({kMargin, kMargin + 27}, fitted(subtitle_of(recipe), Typeface::kRegular, 8, width),
              {Typeface::kRegular, 8, Tint::kMuted});
  double y = kMargin + 36;
  for (const std::string& warning : recipe.warnings) {
    const std::vector<std::string> lines = broken(warning, Typeface::kBold, 8, width - 16);
    const double height = 10.5 * static_cast<double>(lines.size()) + 6;
    canvas.rectangle({kMargin, y, width, height}, {Tint::kSecondSoft, Stroke{Tint::kSecond, 0.75}, 1}, 3);
    for (std::size_t i = 0; i < lines.size(); ++i)
      canvas.text({kMargin + 8, y + 10.8 + 10.5 * static_cast<double>(i)}, lines[i], {Typeface::kBold, 8});
    y += height + 4;
  }
  return y;
}

double draw_cards(Canvas& canvas, const Recipe& recipe, double y) {
  constexpr double kHeight = 66;
  const double width = (kA4Width - 2 * kMargin - 2 * 8) / 3;
  const auto place = [&](int i) { return Box{kMargin + i * (width + 8), y, width, kHeight}; };
  draw_card(canvas, place(0), recipe.simulated ? "Predicted gain over the default" : "Gain over the default",
            recipe.gain, {recipe.gain_detail}, true);
  draw_card(canvas, place(1), "Throughput with this setting", recipe.throughput,
            {recipe.throughput_detail, recipe.baseline}, false);
  draw_card(canvas, place(2), recipe.check ? "Re-checked " + day(recipe.check->checked_at) : "Use it until",
            recipe.check ? check_word(*recipe.check) : day(recipe.expires_at),
            {recipe.check ? recipe.check->sentence : "or until a version below changes; then re-check"}, false);
  return y + kHeight + 8;
}

// What fits when the page is full of knobs: lists are cut, and say so.
struct Limits {
  std::size_t settings = 1000, paste_lines = 1000, bullets = 1000;
};

double draw_left(Canvas& canvas, const Recipe& recipe, const StudyView& study, const Box& box, double scale,
                 const Limits& limits) {
  Sheet sheet(canvas, {box.x, box.y}, box.width, scale);
  sheet.heading("Set this");
  sheet.table(setting_rows(recipe, limits.settings), {0.30, 0.16, 0.19, 0.35});
  const std::string rest = rest_sentence(recipe);
  if (!rest.empty()) sheet.paragraph(rest, {Typeface::kRegular, 7.4, Tint::kMuted});
  sheet.space(6);
  sheet.heading("Ready to paste");
  for (const Snippet& snippet : recipe.paste) {
    std::string text = snippet.text;
    const std::vector<std::string> lines = split(trim(text), '\n');
    if (lines.size() > limits.paste_lines) {
      text = join({lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(limits.paste_lines)}, "\n") + "\n# ...";
    }
    sheet.code(text, snippet.title != "configuration");
  }
  sheet.space(4);
  sheet.heading("What matters most");
  sheet.bullets(cut(recipe.matters, limits.bullets), true);
  const std::vector<Bar> bars = set_back_bars(study.conclusion, 6);
  double y = sheet.y() + 6 * scale;
  if (!bars.empty()) {
    draw_bars(canvas, {box.x, y, box.width, bars_height(bars.size())}, "", "%", bars);
    y += bars_height(bars.size());
  }
  return y;
}

double draw_right(Canvas& canvas, const Recipe& recipe, const Box& box, double scale, const Limits& limits) {
  Sheet sheet(canvas, {box.x, box.y}, box.width, scale);
  sheet.heading("When it does not apply");
  sheet.bullets(cut(recipe.limits, limits.bullets));
  sheet.space(6);
  sheet.heading("It holds for");
  sheet.pairs(recipe.holds_for.empty() ? std::vector<std::pair<std::string, std::string>>{{"versions", "not recorded"}}
                                       : recipe.holds_for);
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
  return sheet.y();
}

// Returns where the lower of the two columns ends.
double draw_page(Canvas& canvas, const Recipe& recipe, const StudyView& study, double scale, const Limits& limits) {
  const double top = draw_cards(canvas, recipe, draw_head(canvas, recipe));
  const double width = kA4Width - 2 * kMargin - kGutter;
  const Box left{kMargin, top, width * 0.575, 0}, right{kMargin + width * 0.575 + kGutter, top, width * 0.425, 0};
  const double bottom =
      std::max(draw_left(canvas, recipe, study, left, scale, limits), draw_right(canvas, recipe, right, scale, limits));
  const double y = kA4Height - kMargin + 6;
  draw_line(canvas, {kMargin, y - 9}, {kA4Width - kMargin, y - 9}, {Tint::kGrid, 0.5});
  canvas.text({kMargin, y}, fitted(footer_of(recipe), Typeface::kRegular, 6.8, kA4Width - 2 * kMargin),
              {Typeface::kRegular, 6.8, Tint::kMuted});
  return bottom;
}

}  // namespace

double page_scale(const Recipe& recipe, const StudyView& study) {
  for (double scale = 1.0; scale > kSmallestScale; scale -= 0.02) {
    PdfPage page(kA4Width, kA4Height);
    if (draw_page(page, recipe, study, scale, {}) <= kA4Height - kMargin - kFooter / 2) return scale;
  }
  return kSmallestScale;
}

std::string to_pdf(const Recipe& recipe, const StudyView& study) {
  const double scale = page_scale(recipe, study);
  Limits limits;
  for (const Limits& tighter : {Limits{}, Limits{30, 8, 8}, Limits{20, 4, 5}, Limits{12, 2, 3}}) {
    limits = tighter;
    PdfPage page(kA4Width, kA4Height);
    if (draw_page(page, recipe, study, scale, limits) <= kA4Height - kMargin - kFooter / 2) break;
  }
  PdfPage page(kA4Width, kA4Height);
  draw_page(page, recipe, study, scale, limits);
  return make_pdf({&page}, {fmt::format("Recipe: {}", recipe.name), subtitle_of(recipe), recipe.made_at});
}

}  // namespace lockstep::report
