#include "lockstep/report/recipe/words.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/base/clock.h"
#include "lockstep/base/text.h"
#include "lockstep/report/canvas/chart.h"

namespace lockstep::report {

namespace {
constexpr double kWorthAThought = 2.0;  // points
}

std::string shown_value(const tune::Value& value) {
  if (!tune::is_active(value)) return kNotUsed;
  const std::string text = tune::to_text(value);
  return text.empty() ? "\"\"" : printable(text, 60);
}

std::string percent(double value) {
  if (!std::isfinite(value)) return "unknown";
  const std::string text = fmt::format("{:.1f}%", value);
  return text == "-0.0%" ? "0.0%" : text;
}

std::string signed_percent(double value) {
  if (!std::isfinite(value)) return "unknown";
  const std::string text = fmt::format("{:+.1f}%", value);
  return text == "-0.0%" ? "+0.0%" : text;
}

std::string rate(double value, const std::string& unit) {
  return unit.empty() ? short_number(value) : fmt::format("{} {}", short_number(value), unit);
}

std::string day(double unix_seconds) {
  return unix_seconds > 0 ? utc_timestamp(unix_seconds).substr(0, 10) : "unknown";
}

std::string launches_of(std::int64_t count) { return fmt::format("{} launch{}", count, count == 1 ? "" : "es"); }

std::string evidence_of(const tune::Estimate& estimate) {
  return estimate.launches > 0 ? launches_of(estimate.launches) : "from the model";
}

bool is_no_set_back(const tune::Estimate& cost) {
  return cost.launches == 0 && cost.value == 0 && cost.low == 0 && cost.high == 0;
}

bool costs_nothing(const tune::KnobImportance& importance) {
  if (!importance.set_back_percent || importance.set_back_fails) return false;
  if (is_no_set_back(*importance.set_back_percent)) return false;
  return importance.set_back_percent->low <= 0 && importance.set_back_percent->high < kWorthAThought;
}

std::string set_back_words(const tune::KnobImportance& importance) {
  if (importance.set_back_fails) return "does not run";
  if (!importance.set_back_percent || is_no_set_back(*importance.set_back_percent)) return "";
  const tune::Estimate& cost = *importance.set_back_percent;
  std::string figure = fmt::format("{} ({:.1f} to {:.1f})", percent(cost.value), cost.low, cost.high);
  if (cost.low > 0 || cost.high < 0) return figure;
  if (costs_nothing(importance)) return fmt::format("none seen (at most {})", percent(std::max(0.0, cost.high)));
  return fmt::format("unclear: {}", figure);
}

}  // namespace lockstep::report
