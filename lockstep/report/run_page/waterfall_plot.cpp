#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/units.h"
#include "lockstep/report/canvas/chart.h"
#include "lockstep/report/canvas/lettering.h"
#include "lockstep/report/run_page/plots.h"
#include "lockstep/report/run_page/words.h"

namespace lockstep::report {
namespace {

constexpr double kRow = 15, kFoot = 14;

// Draws rows downwards: two thin bars each, predicted above measured.
class Rows {
 public:
  Rows(Canvas& canvas, const Box& box, const Waterfall& waterfall)
      : canvas_(canvas), box_(box), waterfall_(waterfall), y_(box.y) {
    frame_ = {box.x + 128, box.y, box.width - 128 - 88, box.height};
    for (int percent = 0; percent <= 100; percent += 20) {
      const double x = frame_.x + frame_.width * percent / 100.0;
      draw_line(canvas, {x, box.y}, {x, box.y + waterfall_height(waterfall) - kFoot}, {Tint::kGrid, 0.5});
    }
  }

  void level(const std::string& name, double (Descent::*value)() const) {
    const auto of = [&](const std::optional<Descent>& side) {
      return side ? value == nullptr ? 1.0 : ((*side).*value)() : NAN;
    };
    row(name, true, {0, of(waterfall_.predicted)}, {0, of(waterfall_.measured)});
    predicted_ = of(waterfall_.predicted), measured_ = of(waterfall_.measured);
  }
  void loss(Loss loss) {
    const auto of = [&](const std::optional<Descent>& side, double& level) -> Span {
      if (!side) return {NAN, NAN};
      const double share = side->share(loss);
      level -= share;
      return {level, level + share};
    };
    const Span predicted = of(waterfall_.predicted, predicted_), measured = of(waterfall_.measured, measured_);
    row(describe(loss), false, predicted, measured);
  }
  double y() const { return y_; }

 private:
  struct Span {
    double from, to;
  };

  void bar(const Span& span, double y, double height, Tint tint) {
    if (!std::isfinite(span.from) || !std::isfinite(span.to)) return;
    const double from = std::clamp(std::min(span.from, span.to), 0.0, 1.0);
    const double to = std::clamp(std::max(span.from, span.to), 0.0, 1.0);
    canvas_.rectangle({frame_.x + from * frame_.width, y, std::max((to - from) * frame_.width, 0.4), height},
                      {tint, {}, 1});
  }
  void row(const std::string& name, bool is_level, const Span& predicted, const Span& measured) {
    const auto percent = [&](const Span& span) { return is_level ? 100.0 * span.to : -100.0 * (span.to - span.from); };
    const std::string text = percent_words(percent(predicted)), own = percent_words(percent(measured));
    const HoverTitle title(canvas_, fmt::format("{}: measured {}, predicted {}", name, own, text));
    bar(predicted, y_ + 1.5, 4.5, is_level ? Tint::kAccentSoft : Tint::kSecondSoft);
    bar(measured, y_ + 6.5, 6.5, is_level ? Tint::kAccent : Tint::kSecond);
    const Typeface face = is_level ? Typeface::kBold : Typeface::kRegular;
    canvas_.text({frame_.x - 6, y_ + 10}, name, {face, kLabelSize, Tint::kText, Anchor::kEnd});
    canvas_.text({box_.right() - 44, y_ + 10}, text, {face, kLabelSize, Tint::kMuted, Anchor::kEnd});
    canvas_.text({box_.right(), y_ + 10}, own, {face, kLabelSize, Tint::kText, Anchor::kEnd});
    y_ += kRow;
  }

  Canvas& canvas_;
  Box box_, frame_;
  const Waterfall& waterfall_;
  double y_;
  double predicted_ = 1.0, measured_ = 1.0;  // levels reached
};

bool has_outside(const Waterfall& waterfall) {
  return is_worth_a_row(waterfall, Loss::kRestarts) || is_worth_a_row(waterfall, Loss::kOutside);
}

}  // namespace

double waterfall_height(const Waterfall& waterfall) {
  std::size_t rows = has_outside(waterfall) ? 3 : 2;
  for (std::size_t i = 0; i < kLosses; ++i) rows += is_worth_a_row(waterfall, static_cast<Loss>(i)) ? 1 : 0;
  return kRow * static_cast<double>(rows) + kFoot;
}

void draw_waterfall(Canvas& canvas, const Box& box, const Waterfall& waterfall) {
  Rows rows(canvas, box, waterfall);
  rows.level("peak", nullptr);
  for (std::size_t i = 0; i < kLosses; ++i) {
    const Loss loss = static_cast<Loss>(i);
    if (loss == Loss::kRestarts) rows.level(measure_title(waterfall.measure), &Descent::mfu);
    if (is_worth_a_row(waterfall, loss)) rows.loss(loss);
  }
  if (has_outside(waterfall)) rows.level("over the whole time", &Descent::overall);
  draw_key(canvas, {box.x + 128, rows.y() + kFoot - 3}, box.width - 128,
           {{KeyEntry::Mark::kBand, Tint::kAccentSoft, "predicted"},
            {KeyEntry::Mark::kLine, Tint::kAccent, "measured"},
            {KeyEntry::Mark::kBand, Tint::kSecondSoft, "predicted loss"},
            {KeyEntry::Mark::kLine, Tint::kSecond, "measured loss"}});
}

}  // namespace lockstep::report
