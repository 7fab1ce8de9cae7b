// Bars in a terminal. Pure functions; every result is one line without a newline, in UTF-8 or plain ASCII.
#pragma once

#include <string>
#include <vector>

#include "lockstep/telemetry/progress.h"

namespace lockstep::report {

using telemetry::TerminalStyle;

enum class Ink { kPlain, kBold, kDim, kRed, kGreen, kYellow, kBlue, kCyan };

// `text` in that ink; as it is where the style has no colour.
std::string inked(const std::string& text, Ink ink, const TerminalStyle& style);

// One part of a bar. The letter stands for it where colour does not.
struct Segment {
  double value = 0;
  char letter = '#';
  Ink ink = Ink::kPlain;
};

// Parts side by side, `full` being the whole of `cells` columns: "PPGGOOAAAA....". Where the parts exceed `full`, the
// bar is drawn to their sum and '|' stands where `full` ends. A part that rounds to nothing is left out.
std::string stacked_bar(const std::vector<Segment>& parts, double full, int cells, const TerminalStyle& style);

// One part at its place in a whole: nothing up to `before`, then `value`. A positive value takes one cell at least.
std::string placed_bar(double before, double value, double full, int cells, Ink ink, const TerminalStyle& style);

// `text` filled up with spaces to `columns`; colours and UTF-8 are counted as a terminal shows them.
std::string left(const std::string& text, int columns);
std::string right(const std::string& text, int columns);

// Rows of cells as columns with two spaces between them, first row as the header; every line ends with '\n'. Columns in
// `right_aligned` (counted from 0) are flush right.
std::string table(const std::vector<std::vector<std::string>>& rows, const std::vector<std::size_t>& right_aligned,
                  int indent, const TerminalStyle& style);

// `text` broken at spaces into lines of at most `width` columns: the first behind `first`, the others indented alike.
// Every line ends with '\n'.
std::string wrapped(const std::string& first, const std::string& text, int width);

}  // namespace lockstep::report
