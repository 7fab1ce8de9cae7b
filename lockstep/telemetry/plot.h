// Curves in a terminal: braille plots with axes and one-line sparklines. Pure functions; UTF-8 out.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace lockstep::telemetry {

struct Curve {
  std::string label;
  std::vector<std::pair<double, double>> points;  // x, y; NaN and infinities are left out
};

struct PlotOptions {
  int width = 72;   // columns in all, axis labels included
  int height = 12;  // rows of the curve itself
  std::string x_label = "step";
  std::string y_label;
  bool unicode = true;  // false: '*' and ASCII axes
};

// A plot of one or more curves with labelled axes; every line ends with '\n'. "" when there is nothing to show. Several
// curves share the dots; their labels are listed below.
std::string plot(const std::vector<Curve>& curves, const PlotOptions& options = {});

// Eight levels of blocks, at most `width` characters (values are averaged into that many bins); NaN shows as ' '.
std::string sparkline(const std::vector<double>& values, int width);

}  // namespace lockstep::telemetry
