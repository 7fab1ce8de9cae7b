// Condition: hysteresis. A rule fires after several bad looks and is over only after a clear time, so that it does not
// flap.
#pragma once

#include <cstddef>
#include <deque>

namespace lockstep::telemetry {

enum class ConditionChange { kNone, kFires, kIsOver };

class Condition {
 public:
  // Fires when `bad_looks` of the last `looks` were bad and this has gone on for `hold_seconds`; over after
  // `clear_looks` in a row that were not.
  Condition(std::size_t bad_looks, std::size_t looks, std::size_t clear_looks, double hold_seconds = 0.0)
      : bad_looks_(bad_looks), looks_(looks), clear_looks_(clear_looks), hold_seconds_(hold_seconds) {}

  // `seconds`: since the last look.
  ConditionChange look(bool bad, double seconds = 0.0) {
    last_.push_back(bad);
    if (last_.size() > looks_) last_.pop_front();
    bad_ = 0;
    for (const bool one : last_) bad_ += one ? 1 : 0;
    bad_seconds_ = bad_ == 0 ? 0.0 : bad_seconds_ + seconds;
    clear_ = bad ? 0 : clear_ + 1;
    if (!firing_ && bad && bad_ >= bad_looks_ && bad_seconds_ >= hold_seconds_) {
      firing_ = true;
      return ConditionChange::kFires;
    }
    if (firing_ && clear_ >= clear_looks_) {
      reset();
      return ConditionChange::kIsOver;
    }
    return ConditionChange::kNone;
  }
  bool is_firing() const { return firing_; }
  void reset() {
    last_.clear();
    bad_ = clear_ = 0;
    bad_seconds_ = 0.0;
    firing_ = false;
  }

 private:
  std::size_t bad_looks_, looks_, clear_looks_;
  double hold_seconds_;
  std::deque<bool> last_;
  std::size_t bad_ = 0, clear_ = 0;
  double bad_seconds_ = 0.0;
  bool firing_ = false;
};

}  // namespace lockstep::telemetry
