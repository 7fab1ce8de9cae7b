#include "lockstep/base/clock.h"

#include <fmt/format.h>

#include <cmath>
#include <ctime>

namespace lockstep {

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string utc_timestamp(double unix_seconds) {
  const auto milliseconds = static_cast<long long>(std::llround(unix_seconds * 1000.0));
  const long long rest = ((milliseconds % 1000) + 1000) % 1000;
  const auto seconds = static_cast<std::time_t>((milliseconds - rest) / 1000);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                     utc.tm_hour, utc.tm_min, utc.tm_sec, rest);
}

double Deadline::remaining() const { return std::max(0.0, at_ - monotonic_seconds()); }

int Deadline::remaining_milliseconds(int cap) const {
  const double milliseconds = std::ceil(remaining() * 1000.0);
  return milliseconds >= cap ? cap : static_cast<int>(milliseconds);
}

}  // namespace lockstep
