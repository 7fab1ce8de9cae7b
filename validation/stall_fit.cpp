#include "validation/stall_fit.h"

#include <algorithm>
#include <cmath>

namespace lockstep::validation {
namespace {

using cost::StallTerms;
constexpr std::size_t kTerms = cost::kStallTerms.size();
constexpr std::int64_t kFewestRuns = 200, kFewestStalls = 10;
constexpr double kTimesOrdinary = 1.5;
constexpr double kSecondsOfSlot = 0.2;
// Standard deviations of the priors: of coefficients of the log odds and of log seconds. The base is free.
constexpr double kOddsSpread = 3.0, kSecondsSpread = 0.3, kBaseSpread = 10.0;
constexpr double kSecondsSigma = 0.4;  // of the logarithm of a stalled slot
constexpr int kIterations = 30;

// Solves A x = b for a symmetric positive definite A, in place.
StallTerms solve(std::array<StallTerms, kTerms> a, StallTerms b) {
  for (std::size_t j = 0; j < kTerms; ++j) {
    for (std::size_t i = j + 1; i < kTerms; ++i) {
      const double factor = a[i][j] / a[j][j];
      for (std::size_t k = j; k < kTerms; ++k) a[i][k] -= factor * a[j][k];
      b[i] -= factor * b[j];
    }
  }
  for (std::size_t i = kTerms; i-- > 0;) {
    for (std::size_t k = i + 1; k < kTerms; ++k) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  return b;
}

double dot(const StallTerms& a, const StallTerms& b) {
  double sum = 0;
  for (std::size_t i = 0; i < kTerms; ++i) sum += a[i] * b[i];
  return sum;
}

// Normal equations that a prior begins.
struct Normal {
  std::array<StallTerms, kTerms> matrix{};
  StallTerms right{};
  Normal(double spread, const StallTerms& at) {
    for (std::size_t i = 0; i < kTerms; ++i) {
      const double weight = 1 / (i == 0 ? kBaseSpread * kBaseSpread : spread * spread);
      matrix[i][i] = weight;
      right[i] = -weight * at[i];
    }
  }
  void add(const StallTerms& terms, double weight, double pull) {
    for (std::size_t i = 0; i < kTerms; ++i) {
      right[i] += pull * terms[i];
      for (std::size_t k = 0; k < kTerms; ++k) matrix[i][k] += weight * terms[i] * terms[k];
    }
  }
};

StallTerms fit_odds(const std::vector<StallExample>& examples) {
  StallTerms odds{};
  for (int iteration = 0; iteration < kIterations; ++iteration) {  // Newton
    Normal normal(kOddsSpread, odds);
    for (const StallExample& e : examples) {
      const double p = 1 / (1 + std::exp(-dot(odds, e.terms)));
      normal.add(e.terms, p * (1 - p), (is_stalled(e) ? 1.0 : 0.0) - p);
    }
    const StallTerms step = solve(normal.matrix, normal.right);
    for (std::size_t i = 0; i < kTerms; ++i) odds[i] += std::clamp(step[i], -2.0, 2.0);
  }
  return odds;
}

StallTerms fit_seconds(const std::vector<StallExample>& examples) {
  Normal normal(kSecondsSpread, StallTerms{});
  for (const StallExample& e : examples) {
    if (!is_stalled(e)) continue;
    const double weight = 1 / (kSecondsSigma * kSecondsSigma);
    const double extra = std::log((e.measured_seconds - e.ordinary_seconds) / e.slots);
    normal.add(e.terms, weight, weight * extra);
  }
  return solve(normal.matrix, normal.right);
}

}  // namespace

bool is_stalled(const StallExample& e) {
  return e.measured_seconds > kTimesOrdinary * e.ordinary_seconds &&
         e.measured_seconds - e.ordinary_seconds > kSecondsOfSlot * e.slots;
}

cost::Stalls fit_stalls(const std::vector<StallExample>& examples) {
  cost::Stalls stalls;
  stalls.runs = static_cast<std::int64_t>(examples.size());
  stalls.stalled = std::count_if(examples.begin(), examples.end(), is_stalled);
  if (stalls.runs < kFewestRuns || stalls.stalled < kFewestStalls) return {};
  stalls.odds = fit_odds(examples);
  stalls.seconds = fit_seconds(examples);
  return stalls;
}

}  // namespace lockstep::validation
