// Clocks. Durations and deadlines use the monotonic clock; the wall clock is for time stamps only.
#pragma once

#include <chrono>
#include <limits>
#include <string>

namespace lockstep {

// Seconds since some fixed moment of this boot; never goes back. The same for all processes of one machine.
double monotonic_seconds();

// Seconds since 1970-01-01 UTC.
double unix_seconds();

// "2026-11-15T02:53:39.125Z".
std::string utc_timestamp(double unix_seconds);

class Stopwatch {
 public:
  Stopwatch() : start_(monotonic_seconds()) {}
  double seconds() const { return monotonic_seconds() - start_; }
  void restart() { start_ = monotonic_seconds(); }

 private:
  double start_;
};

// A moment after which waiting is over. Pass one Deadline through nested waits instead of adding timeouts up.
class Deadline {
 public:
  static Deadline after(double seconds) { return Deadline(monotonic_seconds() + seconds); }
  static Deadline never() { return Deadline(std::numeric_limits<double>::infinity()); }

  bool expired() const { return monotonic_seconds() >= at_; }
  // Seconds left, never negative; infinity for never().
  double remaining() const;
  // For poll(2): milliseconds left rounded up, at most `cap`; 0 when expired.
  int remaining_milliseconds(int cap = 1000) const;

 private:
  explicit Deadline(double at) : at_(at) {}
  double at_;
};

}  // namespace lockstep
