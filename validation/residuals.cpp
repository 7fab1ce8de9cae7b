#include "validation/residuals.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

namespace lockstep::validation {
namespace {

constexpr double kNinetyPercent = 1.6449;
constexpr double kNinetyPercentOneSided = 1.2816;
constexpr double kPrior = 12;  // residuals that the wider group counts as
constexpr double kLeastSigma = 0.015;
constexpr double kLeastMemorySigma = 0.05;
constexpr double kMostMemorySigma = 0.2;  // beyond it a probability of running out says nothing

// A residual and how much it counts.
struct Weighted {
  double value = 0;
  double weight = 1;
};

double quantile(std::vector<Weighted> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end(), [](const Weighted& a, const Weighted& b) { return a.value < b.value; });
  double total = 0;
  for (const Weighted& v : values) total += v.weight;
  double passed = 0;
  for (const Weighted& v : values) {
    passed += v.weight;
    if (passed >= q * total) return v.value;
  }
  return values.back().value;
}

// A sigma from the 90% quantile, not from squares: a few runs on a congested fabric must not widen every interval.
double sigma_of(const std::vector<Weighted>& scaled) { return quantile(scaled, 0.9) / kNinetyPercent; }
double upper_sigma(const std::vector<Weighted>& above) { return quantile(above, 0.9) / kNinetyPercentOneSided; }

// Runs of one fold share its error: a source of a hundred is not known a hundred times as well as one of three.
constexpr double kRunsOfAFold = 3;

struct Sample {
  std::vector<Weighted> time;    // |log residual|
  std::vector<double> exposed;   // share beside it
  std::vector<Weighted> memory;  // how far the measurement lies above; running out of memory has one side
  double opinions = 0;           // runs, of each fold at most kRunsOfAFold
};

// Over several stacks each counts as at most kRunsOfAStack runs: a grid of a thousand is one opinion on a stack that
// nobody has seen, not a thousand.
constexpr double kRunsOfAStack = 20;

template <class Accept>
Sample sample_of(const std::vector<Residual>& all, Accept accept) {
  std::map<std::pair<std::string, std::string>, double> runs;
  std::map<std::string, double> of_fold;
  for (const Residual& r : all) {
    if (!accept(r)) continue;
    ++runs[{r.hardware, r.stack}];
    ++of_fold[r.fold];
  }
  Sample sample;
  for (const auto& [fold, count] : of_fold) sample.opinions += std::min(count, kRunsOfAFold);
  for (const Residual& r : all) {
    if (!accept(r)) continue;
    const double n = runs.at({r.hardware, r.stack});
    const double weight = runs.size() > 1 ? std::min(n, kRunsOfAStack) / n : 1.0;
    if (std::isfinite(r.log_time)) {
      sample.time.push_back({std::abs(r.log_time), weight});
      sample.exposed.push_back(r.exposed_share);
    }
    if (std::isfinite(r.log_memory)) sample.memory.push_back({std::max(0.0, r.log_memory), weight});
  }
  return sample;
}

double pooled(double own, double opinions, double wider) {
  return std::sqrt((opinions * own * own + kPrior * wider * wider) / (opinions + kPrior));
}

// How much wider runs are that communicate more: the slope whose intervals are narrowest at equal coverage.
double exposed_slope(const Sample& sample) {
  double best = 0;
  double best_width = 1e300;
  for (const double slope : {0.0, 1.0, 2.0, 4.0, 8.0}) {
    std::vector<Weighted> scaled;
    double width = 0;
    double total = 0;
    for (std::size_t i = 0; i < sample.time.size(); ++i) {
      const double relative = std::hypot(1.0, slope * sample.exposed[i]);
      const Weighted& time = sample.time[i];
      scaled.push_back({time.value / relative, time.weight});
      width += time.weight * std::log(relative);
      total += time.weight;
    }
    if (scaled.empty()) return 0;
    width = width / total + std::log(std::max(1e-6, sigma_of(scaled)));
    if (width < best_width - 0.02) {
      best_width = width;
      best = slope;
    }
  }
  return best;
}

double time_sigma(const Sample& sample, double slope) {
  std::vector<Weighted> scaled;
  for (std::size_t i = 0; i < sample.time.size(); ++i) {
    scaled.push_back({sample.time[i].value / std::hypot(1.0, slope * sample.exposed[i]), sample.time[i].weight});
  }
  return sigma_of(scaled);
}

}  // namespace

cost::Residuals residuals_of(const std::vector<Residual>& all, const std::string& hardware, const std::string& stack,
                             const std::string& left_out_fold) {
  const auto kept = [&](const Residual& r) { return left_out_fold.empty() || r.fold != left_out_fold; };
  const Sample everything = sample_of(all, kept);
  const Sample relatives = sample_of(all, [&](const Residual& r) { return kept(r) && r.hardware == hardware; });
  const Sample own =
      sample_of(all, [&](const Residual& r) { return kept(r) && r.hardware == hardware && r.stack == stack; });
  const Sample& shape = own.time.size() >= 20 ? own : relatives.time.size() >= 20 ? relatives : everything;
  const double slope = exposed_slope(shape);
  const double wide = pooled(time_sigma(relatives, slope), relatives.opinions, time_sigma(everything, slope));
  cost::Residuals residuals;
  residuals.time = std::max(kLeastSigma, pooled(time_sigma(own, slope), own.opinions, wide));
  residuals.time_exposed = slope * residuals.time;
  const double wide_memory = pooled(upper_sigma(relatives.memory), relatives.opinions, upper_sigma(everything.memory));
  residuals.memory =
      std::clamp(pooled(upper_sigma(own.memory), own.opinions, wide_memory), kLeastMemorySigma, kMostMemorySigma);
  return residuals;
}

double best_reserve_factor(const std::vector<FitExample>& examples, double otherwise) {
  const auto failed = static_cast<double>(
      std::count_if(examples.begin(), examples.end(), [](const FitExample& e) { return e.failed; }));
  const double ran = static_cast<double>(examples.size()) - failed;
  if (failed < 20 || ran < 20) return otherwise;
  // The least reserve that is as good as the best one within a standard error (Breiman et al. 1984, the rule of one
  // standard error): above it balanced accuracy is flat, and more would only forbid layouts that run.
  double best = 0;
  double standard_error = 0;
  std::vector<std::pair<double, double>> tried;  // factor, balanced accuracy
  for (double factor = 1.0; factor < 1.6; factor += 0.005) {
    double right_ran = 0;
    double right_failed = 0;
    for (const FitExample& e : examples) {
      const bool fits = factor * e.allocated + e.fixed <= e.capacity;
      if (e.failed && !fits) ++right_failed;
      if (!e.failed && fits) ++right_ran;
    }
    const double of_ran = right_ran / ran, of_failed = right_failed / failed;
    tried.emplace_back(factor, (of_ran + of_failed) / 2);
    if (tried.back().second <= best) continue;
    best = tried.back().second;
    standard_error = std::sqrt(of_ran * (1 - of_ran) / ran + of_failed * (1 - of_failed) / failed) / 2;
  }
  for (const auto& [factor, balanced] : tried) {
    if (balanced >= best - standard_error) return factor;
  }
  return otherwise;
}

}  // namespace lockstep::validation
