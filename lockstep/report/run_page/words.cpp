#include "lockstep/report/run_page/words.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/base/units.h"
#include "lockstep/report/figures.h"

namespace lockstep::report {

std::string percent_words(double percent) {
  if (!std::isfinite(percent)) return "-";
  const std::string text = fmt::format("{:.1f}%", percent);
  return text == "-0.0%" ? "0.0%" : text;
}

std::string seconds_words(double seconds) {
  if (!std::isfinite(seconds) || seconds == 0.0) return "-";
  return seconds < 0.0 ? "-" + format_seconds(-seconds) : format_seconds(seconds);
}

std::string bytes_words(double bytes) { return bytes > 0.0 ? format_bytes(bytes) : "-"; }

std::string dollars_words(double usd, bool known) { return known ? format_dollars(usd) : "-"; }

std::string difference_words(double measured, double predicted) {
  if (measured <= 0.0 || predicted <= 0.0) return "-";
  return fmt::format("{:+.1f}%", 100.0 * (measured / predicted - 1.0));
}

}  // namespace lockstep::report
