#include "lockstep/telemetry/shift_detector.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/telemetry/robust.h"

namespace lockstep::telemetry {
namespace {

constexpr std::size_t kWarmUp = 5;  // first values: caches and clocks are cold
constexpr std::size_t kEnough = 48, kMost = 256;
constexpr std::size_t kLag = 16;  // youngest values that are not usual yet
constexpr std::size_t kLearnEvery = 8;
constexpr std::size_t kBlock = 8;
constexpr double kLonger = 1.15;  // neighbours resemble each other beyond a block too
constexpr std::size_t kRecent = 8;
constexpr double kNormal = 1.4826;
constexpr double kNormalTenth = 1.2816;  // the highest tenth of normal noise begins there
constexpr double kClip = 4.0;
constexpr double kFastDrift = 1.5, kFastLimit = 9.0;
constexpr double kSlowDrift = 0.5, kSlowLimit = 32.0;

double median_of_last(const std::deque<double>& values, std::size_t count) {
  const std::size_t used = std::min(count, values.size());
  return median_of({values.end() - static_cast<std::ptrdiff_t>(used), values.end()});
}

// Of single values as means of eight show it: neighbours that resemble each other do not average out.
double block_deviation(const std::deque<double>& values) {
  std::vector<double> means;
  for (std::size_t begin = 0; begin + kBlock <= values.size(); begin += kBlock) {
    double sum = 0.0;
    for (std::size_t i = begin; i < begin + kBlock; ++i) sum += values[i];
    means.push_back(sum / kBlock);
  }
  if (means.size() < 3) return 0.0;
  return kLonger * kNormal * median_deviation(means, median_of(means)) * std::sqrt(static_cast<double>(kBlock));
}

}  // namespace

double ShiftDetector::usual() const { return ready_ ? std::exp(middle_) : 0.0; }
double ShiftDetector::recent() const { return pending_.empty() ? 0.0 : std::exp(median_of_last(pending_, kRecent)); }
double ShiftDetector::share_above_usual() const {
  return ready_ && !pending_.empty() ? std::expm1(median_of_last(pending_, kRecent) - middle_) : 0.0;
}

void ShiftDetector::rearm() {
  fast_ = slow_ = excursion_seconds_ = 0.0;
  excursion_ = 0;
  risen_ = false;
}

void ShiftDetector::accept() {
  // Another level is as noisy, until its own noise is known well.
  const double inherited = ready_ ? spread_ : inherited_;
  *this = ShiftDetector(least_);
  inherited_ = inherited;
}

void ShiftDetector::learn() {
  unlearned_ = 0;
  ready_ = usual_.size() >= kEnough;
  if (!ready_) return;
  const std::vector<double> values(usual_.begin(), usual_.end());
  middle_ = median_of(values);
  const double single = kNormal * median_deviation(values, middle_);
  // Times have a longer tail above.
  const double upper = (quantile_of(values, 0.9) - middle_) / kNormalTenth;
  // Few values know their own spread badly.
  const double caution = 1.0 + 16.0 / static_cast<double>(values.size());
  if (values.size() == kMost) inherited_ = 0.0;
  spread_ = std::max({single, upper, block_deviation(usual_), least_ / 2.5, inherited_});
  deviation_ = caution * spread_;
}

// What is older than the lag is usual, unless it may be the beginning of a shift.
void ShiftDetector::settle_pending() {
  bool suspicious = risen_ || fast_ > kFastLimit / 2 || slow_ > kSlowLimit / 2;
  if (suspicious && !risen_ && pending_.size() > kMost) {  // a shift too small to be told
    rearm();
    suspicious = false;
  }
  while (pending_.size() > kLag && !suspicious) {
    usual_.push_back(pending_.front());
    pending_.pop_front();
    if (usual_.size() > kMost) usual_.pop_front();
    ++unlearned_;
  }
  if (pending_.size() > kMost) pending_.pop_front();
  if (unlearned_ >= kLearnEvery || (!ready_ && usual_.size() >= kEnough)) learn();
}

void ShiftDetector::observe(double value, double seconds) {
  if (!(value > 0.0) || !std::isfinite(value) || ++seen_ <= kWarmUp) return;
  pending_.push_back(std::log(value));
  if (ready_ && !risen_) {
    const double score = std::clamp((pending_.back() - middle_) / deviation_, -kClip, kClip);
    fast_ = std::clamp(fast_ + score - kFastDrift, 0.0, 2 * kFastLimit);
    slow_ = std::clamp(slow_ + score - kSlowDrift, 0.0, 2 * kSlowLimit);
    const bool calm = fast_ == 0.0 && slow_ == 0.0;
    excursion_ = calm ? 0 : excursion_ + 1;
    excursion_seconds_ = calm ? 0.0 : excursion_seconds_ + seconds;
    const std::size_t since = std::clamp<std::size_t>(excursion_, 1, fast_ > kFastLimit ? kRecent : kMost);
    const bool beyond = fast_ > kFastLimit || slow_ > kSlowLimit;
    risen_ = beyond && std::expm1(median_of_last(pending_, since) - middle_) >= least_;
  } else if (risen_) {
    excursion_seconds_ += seconds;
  }
  settle_pending();
}

}  // namespace lockstep::telemetry
