#include "lockstep/tune/study/study_ledger.h"

#include <algorithm>
#include <cmath>

namespace lockstep::tune {
namespace {

constexpr double kUnknownShare = 0.1;  // of a trial's time, while nothing was measured
constexpr std::size_t kDivisible = 4;  // so many samples: half of them would still be a measurement
constexpr double kOverrun = 1.1;       // more than that over the budget is not rounding
constexpr double kEndSeconds = 2;      // to end a program in an orderly way, at most
constexpr double kEndShare = 0.05;

double longest_needed(std::span<const Trial> history, double wanted_seconds) {
  double longest = 0, longest_scaled = 0;
  bool overran = false;
  for (const Trial& trial : history) {
    overran = overran || trial.seconds > kOverrun * trial.budget_seconds;
    if (!measured(trial) || trial.budget_seconds <= 0) continue;
    longest = std::max(longest, trial.seconds);
    longest_scaled = std::max(longest_scaled, trial.seconds * std::min(1.0, wanted_seconds / trial.budget_seconds));
  }
  return overran ? longest : longest_scaled;
}

}  // namespace

double Ledger::left() const {
  if (limit_ <= 0) return std::numeric_limits<double>::infinity();
  double promised = 0;
  for (const auto& [trial, gpu_seconds] : promised_) promised += gpu_seconds;
  return limit_ - spent_ - promised;
}

std::optional<Allowance> Ledger::allow(double wanted_seconds, double needed_seconds, double devices) const {
  if (limit_ <= 0) return Allowance{wanted_seconds, 0};
  const double hard = left() / devices;
  if (hard <= 0 || hard < needed_seconds) return std::nullopt;
  const double payable = hard - std::min(kEndSeconds, kEndShare * hard);
  if (payable >= wanted_seconds) return Allowance{wanted_seconds, hard};
  // In whole percents of what was wanted: the moments that a killed study lost do not show in what its last trial gets.
  const double percents = std::floor(100 * payable / wanted_seconds);
  return Allowance{percents >= 1 ? wanted_seconds * percents / 100 : payable, hard};
}

double needed_seconds(std::span<const Trial> history, double wanted_seconds, bool adapts_to_budget) {
  double cheapest = std::numeric_limits<double>::infinity();
  for (const Trial& trial : history) {
    if (!measured(trial)) continue;
    cheapest = std::min(cheapest, trial.seconds * (trial.samples.size() >= kDivisible ? 0.5 : 1.0));
  }
  if (!std::isfinite(cheapest)) return kUnknownShare * wanted_seconds;
  if (adapts_to_budget) return std::min(cheapest, wanted_seconds);
  return std::max(cheapest, longest_needed(history, wanted_seconds));
}

}  // namespace lockstep::tune
