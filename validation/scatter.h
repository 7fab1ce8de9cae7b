// Predicted against measured as a picture: SVG, both axes logarithmic, one colour per series.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace lockstep::validation {

struct ScatterPoint {
  double measured = 0;
  double predicted = 0;
  std::string label;  // shown when pointed at
};

struct ScatterSeries {
  std::string name;
  std::vector<ScatterPoint> points;
};

struct ScatterOptions {
  std::string title;
  std::string unit;  // of both axes
  int size = 560;    // pixels of the square; the legend stands to its right
};

// A standalone <svg> element with the diagonal and the band of 10% around it. Points that are not positive and finite
// are left out; without any the picture says so. Text is escaped.
std::string scatter_svg(const std::vector<ScatterSeries>& series, const ScatterOptions& options);

// & < > " for text inside XML and HTML.
std::string escaped(const std::string& text);

}  // namespace lockstep::validation
