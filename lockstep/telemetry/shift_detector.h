// A level that rose for good, told from noise in few observations: for step times, which a fault makes some percent
// longer without a word.
//
// Two one-sided CUSUM tests (Page, Continuous inspection schemes, Biometrika 1954) on the logarithm of the values: a
// fast one for shifts of several deviations, a slow one for small ones in noisy series. Scores are deviations from the
// median of the last 256 usual values, clipped, so that no few outliers (a step with a checkpoint in it) are a shift;
// the deviation is the larger of the median deviation and that of means of eight, which neighbours that resemble each
// other make large. What false alarms and delays come of it is measured: bench/reports/alerts.md.
#pragma once

#include <cstddef>
#include <deque>

namespace lockstep::telemetry {

class ShiftDetector {
 public:
  // `least_rise`: a share of the level; smaller shifts are not told.
  explicit ShiftDetector(double least_rise) : least_(least_rise) {}

  // A value above 0, of `seconds` of the run; others are ignored. After a rise was told the level before stays the
  // usual one until accept().
  void observe(double value, double seconds = 0.0);
  // The last values are higher than usual, as far as these tests can tell.
  bool has_risen() const { return risen_; }
  // Of the values that made it rise.
  double seconds_since_rise() const { return excursion_seconds_; }

  bool is_ready() const { return ready_; }  // knows what is usual
  double usual() const;                     // the level; 0 before it is known
  double recent() const;                    // median of the last values, at most eight; 0 of none
  double share_above_usual() const;         // recent() / usual() - 1; 0 before it is known
  // Back at the usual level, as it was before the rise.
  bool is_usual_again() const { return ready_ && share_above_usual() < least_ / 2; }

  // What comes now is usual: learns it anew.
  void accept();
  // The tests begin again; what is usual stays.
  void rearm();

 private:
  void learn();
  void settle_pending();

  double least_;
  std::size_t seen_ = 0, unlearned_ = 0;
  std::deque<double> usual_;    // logarithms, oldest first
  std::deque<double> pending_;  // younger ones, which may belong to a shift
  double middle_ = 0.0, spread_ = 0.0, inherited_ = 0.0;
  double deviation_ = 0.0;  // the spread, with caution
  double fast_ = 0.0, slow_ = 0.0, excursion_seconds_ = 0.0;
  std::size_t excursion_ = 0;  // values since both tests were 0
  bool ready_ = false, risen_ = false;
};

}  // namespace lockstep::telemetry
