#include "lockstep/telemetry/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace lockstep::telemetry {
namespace {

// A braille cell is 2 dots wide and 4 high; the bit of each dot, by row and column (Unicode U+2800).
constexpr unsigned char kDots[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
constexpr int kCellWidth = 2;
constexpr int kCellHeight = 4;
constexpr int kMinimumColumns = 8;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
  // A flat line gets some room around it, so that it is drawn in the middle.
  void widen() {
    if (high > low) return;
    const double room = low == 0.0 ? 1.0 : std::abs(low) * 0.1;
    low -= room;
    high += room;
  }
  double share(double value) const { return (value - low) / (high - low); }
};

bool is_shown(const std::pair<double, double>& point) {
  return std::isfinite(point.first) && std::isfinite(point.second);
}

// A grid of dots with y growing upwards.
class Canvas {
 public:
  Canvas(int columns, int rows) : columns_(columns), rows_(rows), cells_(static_cast<std::size_t>(columns) * rows, 0) {}

  int dots_wide() const { return columns_ * kCellWidth; }
  int dots_high() const { return rows_ * kCellHeight; }

  void set(int x, int y) {
    const int down = dots_high() - 1 - y;
    cells_[static_cast<std::size_t>(down / kCellHeight) * columns_ + x / kCellWidth] |=
        kDots[down % kCellHeight][x % kCellWidth];
  }

  // Joins neighbouring points, so that a sparse curve is still a curve.
  void line(int x0, int y0, int x1, int y1) {
    const int steps = std::max({std::abs(x1 - x0), std::abs(y1 - y0), 1});
    for (int i = 0; i <= steps; ++i) {
      set(x0 + static_cast<int>(std::lround(double(x1 - x0) * i / steps)),
          y0 + static_cast<int>(std::lround(double(y1 - y0) * i / steps)));
    }
  }

  std::string row(int index, bool unicode) const {
    std::string text;
    for (int column = 0; column < columns_; ++column) {
      const unsigned char bits = cells_[static_cast<std::size_t>(index) * columns_ + column];
      if (!unicode) {
        text += bits ? '*' : ' ';
      } else {
        const char32_t code = 0x2800 + bits;  // three bytes of UTF-8
        text += static_cast<char>(0xe0 | code >> 12);
        text += static_cast<char>(0x80 | (code >> 6 & 0x3f));
        text += static_cast<char>(0x80 | (code & 0x3f));
      }
    }
    return text;
  }

 private:
  int columns_;
  int rows_;
  std::vector<unsigned char> cells_;
};

void draw(Canvas& canvas, const Curve& curve, const Range& x, const Range& y) {
  std::optional<std::pair<int, int>> last;
  for (const auto& point : curve.points) {
    if (!is_shown(point)) {
      last.reset();  // a gap in the data is a gap in the curve
      continue;
    }
    const int px = static_cast<int>(std::lround(x.share(point.first) * (canvas.dots_wide() - 1)));
    const int py = static_cast<int>(std::lround(y.share(point.second) * (canvas.dots_high() - 1)));
    if (last) {
      canvas.line(last->first, last->second, px, py);
    } else {
      canvas.set(px, py);
    }
    last = {px, py};
  }
}

std::string number(double value) { return fmt::format("{:.4g}", value); }

std::string x_axis(const Range& x, int columns, const std::string& label) {
  const std::string left = number(x.low), right = number(x.high);
  const int room = columns - static_cast<int>(left.size() + right.size());
  if (room < static_cast<int>(label.size()) + 2) return left + std::string(std::max(room, 1), ' ') + right;
  const int before = (room - static_cast<int>(label.size())) / 2;
  return left + std::string(before, ' ') + label + std::string(room - before - static_cast<int>(label.size()), ' ') +
         right;
}

}  // namespace

std::string plot(const std::vector<Curve>& curves, const PlotOptions& options) {
  Range x, y;
  for (const Curve& curve : curves) {
    for (const auto& point : curve.points) {
      if (!is_shown(point)) continue;
      x.include(point.first);
      y.include(point.second);
    }
  }
  if (x.empty()) return {};
  y.widen();
  x.widen();
  const int rows = std::max(options.height, 2);
  const std::string top = number(y.high), middle = number((y.low + y.high) / 2), bottom = number(y.low);
  const int label = static_cast<int>(std::max({top.size(), middle.size(), bottom.size()}));
  const int columns = std::max(options.width - label - 3, kMinimumColumns);

  Canvas canvas(columns, rows);
  for (const Curve& curve : curves) draw(canvas, curve, x, y);
  std::string text;
  if (!options.y_label.empty()) text += std::string(label + 2, ' ') + options.y_label + "\n";
  const char* side = options.unicode ? "┤" : "|";
  for (int row = 0; row < rows; ++row) {
    const std::string& tick = row == 0 ? top : row == rows / 2 ? middle : row == rows - 1 ? bottom : std::string();
    text += fmt::format("{:>{}} {}{}\n", tick, label, side, canvas.row(row, options.unicode));
  }
  text += std::string(label + 2, ' ') + x_axis(x, columns, options.x_label) + "\n";
  if (curves.size() > 1) {
    text += std::string(label + 2, ' ');
    for (std::size_t i = 0; i < curves.size(); ++i) text += (i ? ", " : "") + curves[i].label;
    text += "\n";
  }
  return text;
}

std::string sparkline(const std::vector<double>& values, int width) {
  static constexpr const char* kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  if (values.empty() || width <= 0) return {};
  const std::size_t bins = std::min<std::size_t>(values.size(), width);
  std::vector<double> means(bins);
  Range range;
  for (std::size_t bin = 0; bin < bins; ++bin) {
    double sum = 0.0;
    int count = 0;
    for (std::size_t i = bin * values.size() / bins; i < (bin + 1) * values.size() / bins; ++i) {
      if (!std::isfinite(values[i])) continue;
      sum += values[i];
      ++count;
    }
    means[bin] = count ? sum / count : std::numeric_limits<double>::quiet_NaN();
    if (count) range.include(means[bin]);
  }
  range.widen();
  std::string text;
  for (const double mean : means) {
    text += std::isnan(mean) ? " " : kBlocks[std::clamp(static_cast<int>(range.share(mean) * 8), 0, 7)];
  }
  return text;
}

}  // namespace lockstep::telemetry
