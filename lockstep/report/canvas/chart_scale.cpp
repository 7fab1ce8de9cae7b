// Scales and ticks of charts.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/report/canvas/chart.h"

namespace lockstep::report {
namespace {

// 1, 2 or 5 times a power of ten, the nearest above `rough`.
double round_step(double rough) {
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double digit = rough / power;
  return power * (digit <= 1.0001 ? 1 : digit <= 2.0001 ? 2 : digit <= 5.0001 ? 5 : 10);
}

std::vector<Tick> linear_ticks(const Scale& scale, int wanted) {
  const double step = round_step((scale.high - scale.low) / std::max(1, wanted));
  std::vector<Tick> ticks;
  const double first = std::ceil(scale.low / step - 1e-9);
  for (double k = first; k * step <= scale.high + step * 1e-9 && ticks.size() < 100; ++k) {
    const double at = k == 0 ? 0 : k * step;
    ticks.push_back({at, short_number(at)});
  }
  return ticks;
}

std::vector<Tick> log_ticks(const Scale& scale, int wanted) {
  const double decades = std::log10(scale.high / scale.low);
  if (decades < 0.9) return linear_ticks({scale.low, scale.high, false}, wanted);
  const double base = decades <= 2.8 ? 2 : 10;
  const double powers = decades / std::log10(base);
  const double stride = std::max(1.0, std::ceil(powers / std::max(1, wanted)));
  std::vector<Tick> ticks;
  const double first = std::ceil(std::log(scale.low) / std::log(base) - 1e-9);
  for (double k = first; ticks.size() < 100; k += stride) {
    const double at = std::pow(base, k);
    if (at > scale.high * (1 + 1e-9)) break;
    ticks.push_back({at, short_number(at)});
  }
  return ticks;
}

}  // namespace

double Scale::share(double value) const {
  if (log) return (std::log(value) - std::log(low)) / (std::log(high) - std::log(low));
  return (value - low) / (high - low);
}

Scale round_scale(double low, double high, bool log) {
  if (!std::isfinite(low) || !std::isfinite(high)) return {log ? 1.0 : 0.0, log ? 10.0 : 1.0, log};
  if (low > high) std::swap(low, high);
  if (log) {
    low = std::max(low, 1e-12);
    high = std::max(high, low);
    if (high < low * 1.05) return {low / 1.5, high * 1.5, true};
    return {low, high, true};
  }
  if (high - low < 1e-9 * std::max(1.0, std::abs(high))) {
    const double room = std::max(std::abs(high) * 0.05, 1e-9);
    low -= room, high += room;
  }
  const double step = round_step((high - low) / 8);
  return {std::floor(low / step + 1e-9) * step, std::ceil(high / step - 1e-9) * step, false};
}

std::vector<Tick> round_ticks(const Scale& scale, int wanted) {
  return scale.log ? log_ticks(scale, wanted) : linear_ticks(scale, wanted);
}

std::string short_number(double value) {
  if (!std::isfinite(value)) return "-";
  struct Prefix {
    double factor;
    const char* letter;
  };
  static constexpr Prefix kPrefixes[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
  const double size = std::abs(value);
  for (const Prefix& prefix : kPrefixes) {
    if (size >= prefix.factor * 0.99999) return fmt::format("{:.4g}{}", value / prefix.factor, prefix.letter);
  }
  if (size != 0 && size < 1e-3) return fmt::format("{:.2g}", value);
  return fmt::format("{:.3g}", value);
}

}  // namespace lockstep::report
