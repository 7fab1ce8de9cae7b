// Canvas: lines, areas and words on a page, drawn the same way into SVG and into PDF.
//
// Lengths are points (1/72 inch), y grows downwards, angles are degrees. What is drawn names a Tint, not a colour: the
// SVG backend lets the page choose (light or dark), the PDF backend prints on white.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::report {

struct Position {
  double x = 0;
  double y = 0;
};

struct Box {
  double x = 0, y = 0, width = 0, height = 0;
  double right() const { return x + width; }
  double bottom() const { return y + height; }
};

// Tints differ in lightness too, so that a grey print still distinguishes them. kRamp0 to kRamp8 go from faint to
// strong: more is better.
enum class Tint : std::uint8_t {
  kPaper,
  kText,
  kMuted,
  kGrid,
  kShade,
  kShadeStrong,
  kAccent,      // blue: what is recommended
  kAccentSoft,  // its bands
  kSecond,      // orange: what it is compared with
  kSecondSoft,
  kBad,  // failures
  kRamp0,
  kRamp1,
  kRamp2,
  kRamp3,
  kRamp4,
  kRamp5,
  kRamp6,
  kRamp7,
  kRamp8
};
inline constexpr int kTints = static_cast<int>(Tint::kRamp8) + 1;
inline constexpr int kRampSteps = 9;

// `share` in [0, 1], clamped.
Tint ramp(double share);

struct Rgb {
  std::uint8_t red = 0, green = 0, blue = 0;
};
Rgb on_light(Tint tint);
Rgb on_dark(Tint tint);
const char* css_name(Tint tint);  // "accent", "ramp3"

struct Stroke {
  Tint tint = Tint::kText;
  double width = 0.75;
  bool dashed = false;
};

struct Shape {
  std::optional<Tint> fill;
  std::optional<Stroke> stroke;
  double opacity = 1;  // of the fill
};

enum class Typeface : std::uint8_t { kRegular, kBold, kItalic, kMono };
inline constexpr int kTypefaces = 4;
enum class Anchor : std::uint8_t { kStart, kMiddle, kEnd };

struct Lettering {
  Typeface face = Typeface::kRegular;
  double size = 8;
  Tint tint = Tint::kText;
  Anchor anchor = Anchor::kStart;
  double turn = 0;  // counter-clockwise
};

class Canvas {
 public:
  virtual ~Canvas() = default;
  virtual void line(std::span<const Position> points, const Stroke& stroke) = 0;
  virtual void area(std::span<const Position> corners, const Shape& shape) = 0;
  virtual void rectangle(const Box& box, const Shape& shape, double radius = 0) = 0;
  virtual void circle(Position centre, double radius, const Shape& shape) = 0;
  // `at` is on the base line. UTF-8; what a backend has no glyph for is spelled in ASCII or shown as '?'.
  virtual void text(Position at, std::string_view words, const Lettering& lettering) = 0;
  // What is drawn until the end belongs to one thing, described on hover where the medium can. May be nested.
  virtual void begin_group(const std::string& title) = 0;
  virtual void end_group() = 0;
};

void draw_line(Canvas& canvas, Position from, Position to, const Stroke& stroke);

class HoverTitle {
 public:
  HoverTitle(Canvas& canvas, const std::string& title) : canvas_(canvas) { canvas_.begin_group(title); }
  ~HoverTitle() { canvas_.end_group(); }
  HoverTitle(const HoverTitle&) = delete;
  HoverTitle& operator=(const HoverTitle&) = delete;

 private:
  Canvas& canvas_;
};

}  // namespace lockstep::report
