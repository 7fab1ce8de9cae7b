#include "lockstep/report/canvas/front.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/report/canvas/lettering.h"
#include "lockstep/report/canvas/markup.h"
#include "lockstep/report/canvas/svg_canvas.h"

namespace lockstep::report {
namespace {

constexpr double kDetailSize = 7, kDetailLeading = 8.6;
constexpr std::size_t kCardsInARow = 3;

std::vector<std::string> detail_lines(const Card& card, double width) {
  std::vector<std::string> all;
  for (const std::string& detail : card.details) {
    if (detail.empty()) continue;
    for (std::string& line : broken(detail, Typeface::kRegular, kDetailSize, width - 18))
      all.push_back(std::move(line));
  }
  return all;
}

void draw_card(Canvas& canvas, const Box& box, const Card& card) {
  canvas.rectangle(box, {card.strong ? Tint::kAccent : Tint::kShade, {}, 1}, 4);
  const Tint ink = card.strong ? Tint::kPaper : Tint::kText, faint = card.strong ? Tint::kPaper : Tint::kMuted;
  const double inner = box.width - 18, left = box.x + 9;
  canvas.text({left, box.y + 13}, fitted(card.label, Typeface::kRegular, 7.5, inner), {Typeface::kRegular, 7.5, faint});
  double size = 19;
  while (size > 10 && text_width(card.figure, Typeface::kBold, size) > inner) size -= 0.5;
  canvas.text({left, box.y + 33}, fitted(card.figure, Typeface::kBold, size, inner), {Typeface::kBold, size, ink});
  double y = box.y + 44;
  for (const std::string& line : detail_lines(card, box.width)) {
    canvas.text({left, y}, line, {Typeface::kRegular, kDetailSize, faint});
    y += kDetailLeading;
  }
}

double draw_cards(Canvas& canvas, const std::vector<Card>& cards, Position top_left, double whole_width) {
  constexpr double kGap = 8;
  const double width = (whole_width - 2 * kGap) / kCardsInARow;
  double y = top_left.y;
  for (std::size_t first = 0; first < cards.size(); first += kCardsInARow) {
    const std::size_t end = std::min(first + kCardsInARow, cards.size());
    std::size_t lines = 2;
    for (std::size_t i = first; i < end; ++i) lines = std::max(lines, detail_lines(cards[i], width).size());
    const double height = 42 + kDetailLeading * static_cast<double>(lines);
    for (std::size_t i = first; i < end; ++i) {
      const double x = top_left.x + static_cast<double>(i - first) * (width + kGap);
      draw_card(canvas, {x, y, width, height}, cards[i]);
    }
    y += height + 8;
  }
  return y;
}

std::string markup_card(const Card& card) {
  std::string out = fmt::format("<div class=\"card{}\"><div class=\"label\">{}</div><div class=\"figure\">{}</div>",
                                card.strong ? " strong" : "", escape_markup(card.label), escape_markup(card.figure));
  for (const std::string& detail : card.details) {
    if (!detail.empty()) out += fmt::format("<div class=\"detail\">{}</div>", escape_markup(detail));
  }
  return out + "</div>\n";
}

}  // namespace

std::string markup_front(const Front& front) {
  std::string out =
      fmt::format("<header><h1>{}</h1><span class=\"badge{}\">{}</span></header>\n<p class=\"muted\">{}</p>\n",
                  escape_markup(front.title), front.sure ? "" : " unsure", escape_markup(front.badge),
                  escape_markup(front.subtitle));
  for (const std::string& warning : front.warnings) out += markup_paragraph(warning, "warning");
  out += "<div class=\"cards\">\n";
  for (const Card& card : front.cards) out += markup_card(card);
  return out + "</div>\n";
}

double draw_front(Canvas& canvas, const Front& front, Position top_left, double width) {
  const auto [x, top] = top_left;
  const double badge_width = text_width(front.badge, Typeface::kBold, 8) + 14;
  canvas.text({x, top + 14}, fitted(front.title, Typeface::kBold, 17, width - badge_width - 10), {Typeface::kBold, 17});
  canvas.rectangle({x + width - badge_width, top + 1, badge_width, 15},
                   {front.sure ? Tint::kAccent : Tint::kSecond, {}, 1}, 3);
  canvas.text({x + width - badge_width / 2, top + 11.4}, front.badge,
              {Typeface::kBold, 8, Tint::kPaper, Anchor::kMiddle});
  canvas.text({x, top + 27}, fitted(front.subtitle, Typeface::kRegular, 8, width),
              {Typeface::kRegular, 8, Tint::kMuted});
  double y = top + 36;
  for (const std::string& warning : front.warnings) {
    const std::vector<std::string> lines = broken(warning, Typeface::kBold, 8, width - 16);
    const double height = 10.5 * static_cast<double>(lines.size()) + 6;
    canvas.rectangle({x, y, width, height}, {Tint::kSecondSoft, Stroke{Tint::kSecond, 0.75}, 1}, 3);
    for (std::size_t i = 0; i < lines.size(); ++i)
      canvas.text({x + 8, y + 10.8 + 10.5 * static_cast<double>(i)}, lines[i], {Typeface::kBold, 8});
    y += height + 4;
  }
  return draw_cards(canvas, front.cards, {x, y}, width);
}

}  // namespace lockstep::report
