// How wide words are in the fonts every PDF reader has (Helvetica, Courier), and breaking text to a width. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/report/canvas/canvas.h"

namespace lockstep::report {

// Sizes of letters in points: of charts, and of sheets at scale 1.
inline constexpr double kTickSize = 7, kLabelSize = 7.5, kTitleSize = 9;
inline constexpr double kTextSize = 7.8, kHeadingSize = 9.5, kCodeSize = 6.9;

// UTF-8 to the encoding of PDF's standard fonts (WinAnsi, that is Windows-1252). Arrows, comparison signs and the like
// are spelled in ASCII ("->", ">="), anything else is '?'; control characters become spaces.
std::string to_win_ansi(std::string_view utf8);

// To that many decimals, without zeros at the end; "0" for what is not finite.
std::string short_number(double value, int decimals);

// In points.
double text_width(std::string_view utf8, Typeface face, double size);

// Cut with "..." when it is wider than `width`.
std::string fitted(std::string_view utf8, Typeface face, double size, double width);

// Broken at spaces into lines at most `width` wide; a word that is wider is broken inside. "" gives one empty line.
std::vector<std::string> broken(std::string_view utf8, Typeface face, double size, double width);

}  // namespace lockstep::report
