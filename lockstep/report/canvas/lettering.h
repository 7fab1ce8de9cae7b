// How wide words are in the fonts every PDF reader has (Helvetica, Courier), and breaking text to a width. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/report/canvas/canvas.h"

namespace lockstep::report {

// UTF-8 to the encoding of PDF's standard fonts (WinAnsi, that is Windows-1252). Arrows, comparison signs and the like
// are spelled in ASCII ("->", ">="), anything else is '?'; control characters become spaces.
std::string to_win_ansi(std::string_view utf8);

// In points.
double text_width(std::string_view utf8, Typeface face, double size);

// Cut with "..." when it is wider than `width`.
std::string fitted(std::string_view utf8, Typeface face, double size, double width);

// Broken at spaces into lines at most `width` wide; a word that is wider is broken inside. "" gives one empty line.
std::vector<std::string> broken(std::string_view utf8, Typeface face, double size, double width);

}  // namespace lockstep::report
