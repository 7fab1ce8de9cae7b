#include "lockstep/report/canvas/canvas.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace lockstep::report {
namespace {

struct Colours {
  const char* name;
  Rgb light;
  Rgb dark;
};

// Blue and vermilion are Okabe and Ito's, which people with any common colour blindness can distinguish. The ramp is
// one hue whose lightness falls (rises, on dark) evenly.
constexpr std::array<Colours, kTints> kColours{{
    {"paper", {255, 255, 255}, {22, 24, 28}},   {"text", {28, 32, 38}, {232, 234, 237}},
    {"muted", {95, 103, 112}, {154, 162, 171}}, {"grid", {222, 226, 230}, {52, 57, 63}},
    {"shade", {245, 247, 249}, {31, 34, 39}},   {"shade-strong", {232, 236, 240}, {42, 46, 52}},
    {"accent", {0, 99, 160}, {86, 180, 233}},   {"accent-soft", {176, 208, 231}, {36, 78, 105}},
    {"second", {200, 90, 0}, {240, 150, 70}},   {"second-soft", {246, 213, 184}, {96, 62, 34}},
    {"bad", {176, 32, 48}, {240, 110, 120}},    {"ramp0", {216, 226, 236}, {44, 54, 64}},
    {"ramp1", {190, 208, 226}, {48, 68, 86}},   {"ramp2", {160, 188, 215}, {52, 84, 109}},
    {"ramp3", {128, 167, 204}, {58, 101, 134}}, {"ramp4", {94, 145, 192}, {66, 119, 159}},
    {"ramp5", {62, 122, 177}, {78, 139, 183}},  {"ramp6", {37, 98, 157}, {98, 161, 206}},
    {"ramp7", {20, 74, 130}, {128, 186, 226}},  {"ramp8", {8, 48, 96}, {172, 214, 244}},
}};

const Colours& colours(Tint tint) { return kColours[static_cast<std::size_t>(tint)]; }

}  // namespace

Tint ramp(double share) {
  const double clamped = std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0.0;
  const int step = std::min(kRampSteps - 1, static_cast<int>(clamped * kRampSteps));
  return static_cast<Tint>(static_cast<int>(Tint::kRamp0) + step);
}

Rgb on_light(Tint tint) { return colours(tint).light; }
Rgb on_dark(Tint tint) { return colours(tint).dark; }
const char* css_name(Tint tint) { return colours(tint).name; }

void draw_line(Canvas& canvas, Position from, Position to, const Stroke& stroke) {
  canvas.line(std::array{from, to}, stroke);
}

}  // namespace lockstep::report
