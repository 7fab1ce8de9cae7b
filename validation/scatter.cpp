#include "validation/scatter.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

namespace lockstep::validation {
namespace {

// Okabe and Ito's palette, which the colour-blind can tell apart, and three more for the rare longer legend.
constexpr std::array kColours{"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
                              "#000000", "#999933", "#882255", "#6A3D9A", "#AAAAAA"};
constexpr std::size_t kLongestName = 44;
constexpr int kLeft = 62;
constexpr int kTop = 34;
constexpr int kBottom = 46;
constexpr int kLegend = 370;

bool drawable(const ScatterPoint& point) {
  return std::isfinite(point.measured) && std::isfinite(point.predicted) && point.measured > 0 && point.predicted > 0;
}

// One scale for both axes, so that the diagonal is where prediction equals measurement.
struct Axes {
  double low = 0, high = 1;  // decimal logarithms
  double side = 0;           // pixels

  double x(double value) const { return kLeft + (std::log10(value) - low) / (high - low) * side; }
  double y(double value) const { return kTop + side - (std::log10(value) - low) / (high - low) * side; }
};

Axes axes_of(const std::vector<ScatterSeries>& series, int size) {
  Axes axes{.low = 1e9, .high = -1e9, .side = static_cast<double>(size - kLeft - 12)};
  for (const ScatterSeries& one : series) {
    for (const ScatterPoint& point : one.points) {
      if (!drawable(point)) continue;
      for (const double value : {point.measured, point.predicted}) {
        axes.low = std::min(axes.low, std::log10(value));
        axes.high = std::max(axes.high, std::log10(value));
      }
    }
  }
  axes.low -= 0.08;
  axes.high += 0.08;
  return axes;
}

std::string grid(const Axes& axes) {
  std::string text;
  const bool wide = axes.high - axes.low > 1.5;
  for (int decade = static_cast<int>(std::floor(axes.low)); decade <= static_cast<int>(axes.high); ++decade) {
    for (const double step : {1.0, 2.0, 5.0}) {
      const double value = step * std::pow(10.0, decade);
      if (std::log10(value) < axes.low || std::log10(value) > axes.high || (wide && step != 1.0)) continue;
      const std::string name = value >= 1000 ? fmt::format("{:g}k", value / 1000) : fmt::format("{:g}", value);
      text += fmt::format(
          "<line x1='{0:.1f}' x2='{0:.1f}' y1='{1}' y2='{2:.1f}' class='g'/>"
          "<line y1='{3:.1f}' y2='{3:.1f}' x1='{4}' x2='{5:.1f}' class='g'/>"
          "<text x='{0:.1f}' y='{6:.1f}' text-anchor='middle'>{7}</text>"
          "<text x='{8}' y='{9:.1f}' text-anchor='end'>{7}</text>\n",
          axes.x(value), kTop, kTop + axes.side, axes.y(value), kLeft, kLeft + axes.side, kTop + axes.side + 16, name,
          kLeft - 6, axes.y(value) + 4);
    }
  }
  return text;
}

std::string diagonal(const Axes& axes) {
  const double low = std::pow(10.0, axes.low);
  const double high = std::pow(10.0, axes.high);
  std::string text;
  for (const auto& [factor, style] : {std::pair{1.0, "d"}, std::pair{1.1, "b"}, std::pair{1 / 1.1, "b"}}) {
    text += fmt::format("<line x1='{:.1f}' y1='{:.1f}' x2='{:.1f}' y2='{:.1f}' class='{}' clip-path='url(#area)'/>\n",
                        axes.x(low), axes.y(low * factor), axes.x(high), axes.y(high * factor), style);
  }
  return text;
}

std::string dots(const std::vector<ScatterSeries>& series, const Axes& axes) {
  std::string text;
  for (std::size_t i = 0; i < series.size(); ++i) {
    text += fmt::format("<g fill='{}' fill-opacity='0.55'>\n", kColours[i % kColours.size()]);
    for (const ScatterPoint& point : series[i].points) {
      if (!drawable(point)) continue;
      text += fmt::format(
          "<circle cx='{:.1f}' cy='{:.1f}' r='2.6'><title>{}: measured {:.4g}, predicted {:.4g}</title></circle>\n",
          axes.x(point.measured), axes.y(point.predicted), escaped(point.label), point.measured, point.predicted);
    }
    text += "</g>\n";
  }
  return text;
}

std::string shortened(const std::string& name) {
  return name.size() <= kLongestName ? name : name.substr(0, kLongestName - 3) + "...";
}

std::string legend(const std::vector<ScatterSeries>& series, int x) {
  std::string text;
  int y = kTop + 10;
  for (std::size_t i = 0; i < series.size(); ++i, y += 18) {
    text += fmt::format("<circle cx='{}' cy='{}' r='4' fill='{}'/><text x='{}' y='{}'>{} ({})</text>\n", x, y - 4,
                        kColours[i % kColours.size()], x + 10, y, escaped(shortened(series[i].name)),
                        series[i].points.size());
  }
  return text;
}

bool nothing_to_draw(const std::vector<ScatterSeries>& series) {
  return std::none_of(series.begin(), series.end(), [](const ScatterSeries& one) {
    return std::any_of(one.points.begin(), one.points.end(), drawable);
  });
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '&') {
      safe += "&amp;";
    } else if (c == '<') {
      safe += "&lt;";
    } else if (c == '>') {
      safe += "&gt;";
    } else if (c == '"') {
      safe += "&quot;";
    } else if (c == '\'') {
      safe += "&#39;";
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string scatter_svg(const std::vector<ScatterSeries>& series, const ScatterOptions& options) {
  const int width = options.size + kLegend;
  const int height = options.size - kLeft - 12 + kTop + kBottom;
  std::string text = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {0} {1}' width='{0}' height='{1}' font-family='sans-serif' "
      "font-size='12'>\n<style>.g{{stroke:#ddd}}.d{{stroke:#444}}.b{{stroke:#999;stroke-dasharray:4 3}}</style>\n"
      "<rect width='{0}' height='{1}' fill='#fff'/><text x='{2}' y='20' font-size='14' font-weight='bold'>{3}</text>\n",
      width, height, kLeft, escaped(options.title));
  if (nothing_to_draw(series)) return text + fmt::format("<text x='{}' y='60'>nothing to show</text></svg>\n", kLeft);
  const Axes axes = axes_of(series, options.size);
  text += fmt::format("<clipPath id='area'><rect x='{}' y='{}' width='{:.1f}' height='{:.1f}'/></clipPath>\n", kLeft,
                      kTop, axes.side, axes.side);
  text += grid(axes) + diagonal(axes) + dots(series, axes) + legend(series, options.size + 14);
  const double middle = kTop + axes.side / 2;
  text += fmt::format("<text x='{:.1f}' y='{}' text-anchor='middle'>measured, {}</text>\n", kLeft + axes.side / 2,
                      height - 8, escaped(options.unit));
  text += fmt::format(
      "<text x='16' y='{0:.1f}' text-anchor='middle' transform='rotate(-90 16 {0:.1f})'>predicted</text>", middle);
  return text + "\n</svg>\n";
}

}  // namespace lockstep::validation
