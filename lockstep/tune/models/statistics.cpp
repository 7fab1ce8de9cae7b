#include "lockstep/tune/models/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace lockstep::tune {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Regularized incomplete beta function, a continued fraction by Lentz's method (DLMF 8.17.22). Good to 1e-14 for
// x <= (a + 1) / (a + b + 2); the caller takes the complement otherwise.
double beta_fraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300;
  double c = 1;
  double d = 1 - (a + b) * x / (a + 1);
  d = 1 / (std::abs(d) < kTiny ? kTiny : d);
  double result = d;
  for (int m = 1; m <= 10'000; ++m) {
    const double twice = 2.0 * m;
    for (const double term : {m * (b - m) * x / ((a + twice - 1) * (a + twice)),
                              -(a + m) * (a + b + m) * x / ((a + twice) * (a + twice + 1))}) {
      d = 1 + term * d;
      c = 1 + term / c;
      d = 1 / (std::abs(d) < kTiny ? kTiny : d);
      if (std::abs(c) < kTiny) c = kTiny;
      result *= c * d;
    }
    if (std::abs(c * d - 1) < 1e-16) break;
  }
  return result;
}

double incomplete_beta(double a, double b, double x, double one_minus_x) {
  if (x <= 0) return 0;
  if (one_minus_x <= 0) return 1;
  const double log_front =
      std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log(one_minus_x);
  if (x <= (a + 1) / (a + b + 2)) return std::exp(log_front) * beta_fraction(a, b, x) / a;
  return 1 - std::exp(log_front) * beta_fraction(b, a, one_minus_x) / b;
}

// P(T > t) for t >= 0.
double student_t_tail(double t, double df) {
  const double square = t * t;
  return 0.5 * incomplete_beta(df / 2, 0.5, df / (df + square), square / (df + square));
}

// Cornish-Fisher expansion in 1 / df (Abramowitz and Stegun 26.7.5); good to 1e-12 from 2000 degrees on.
double expanded_t_quantile(double z, double df) {
  const double z2 = z * z;
  const double g1 = (z2 + 1) * z / 4;
  const double g2 = ((5 * z2 + 16) * z2 + 3) * z / 96;
  const double g3 = (((3 * z2 + 19) * z2 + 17) * z2 - 15) * z / 384;
  return z + (g1 + (g2 + g3 / df) / df) / df;
}

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double sum_of_squares(std::span<const double> values) {
  const double mean = mean_of(values);
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return sum;
}

double autocovariance(std::span<const double> values, double mean, std::size_t lag) {
  double sum = 0;
  for (std::size_t i = 0; i + lag < values.size(); ++i) sum += (values[i] - mean) * (values[i + lag] - mean);
  return sum / static_cast<double>(values.size());
}

// Variance of the mean of n values of an AR(1) process, times n, over the variance of one value.
double ar1_inflation(double rho, double n) {
  return (1 + rho) / (1 - rho) - 2 * rho * (1 - std::pow(rho, n)) / (n * (1 - rho) * (1 - rho));
}

// How much longer than independent samples these must be watched for the same error. The sample autocorrelation of
// short series is biased low by (1 + 3 rho) / n (Marriott and Pope 1954); five values say nothing about it. Long
// series also get Geyer's initial positive sequence (1992), which sees slow parts that the first lag does not.
double integrated_autocorrelation(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  if (values.size() < 6) return 1;
  const double mean = mean_of(values);
  const double variance = autocovariance(values, mean, 0);
  if (!(variance > 0)) return 1;
  const double raw = autocovariance(values, mean, 1) / variance;
  // Corrected, and trusted as far as it stands out from the 1 / sqrt(n) that independent samples give.
  const double corrected = std::clamp((n * raw + 1) / (n - 3), 0.0, 0.98);
  const double doubt = corrected > 0 ? corrected * corrected / (corrected * corrected + 1 / n) : 0;
  double inflation = ar1_inflation(corrected * doubt, n);
  if (values.size() >= 40) {
    double sum = -1, smallest = kInfinity;
    for (std::size_t k = 0; 2 * k + 1 < values.size() / 2; ++k) {
      const double pair = (autocovariance(values, mean, 2 * k) + autocovariance(values, mean, 2 * k + 1)) / variance;
      if (pair <= 0) break;
      smallest = std::min(smallest, pair);
      sum += 2 * smallest;
    }
    inflation = std::max(inflation, sum);
  }
  return std::clamp(inflation, 1.0, n / 2);
}

// Truncation point of the marginal standard error rule over batches of `batch` samples; at most half is cut.
std::size_t mser_cut(std::span<const double> samples, std::size_t batch) {
  std::vector<double> means;
  for (std::size_t i = 0; i + batch <= samples.size(); i += batch) means.push_back(mean_of(samples.subspan(i, batch)));
  const std::span<const double> all(means);
  std::size_t best = 0;
  double lowest = kInfinity;
  for (std::size_t cut = 0; cut <= means.size() / 2; ++cut) {
    const auto left = static_cast<double>(means.size() - cut);
    const double score = sum_of_squares(all.subspan(cut)) / (left * left);
    if (score < lowest * (1 - 1e-12)) {
      lowest = score;
      best = cut;
    }
  }
  return best * batch;
}

// Is the mean of `block` clearly another than that of `rest`? Few samples know little about their own spread, so it is
// moderated: two degrees of freedom of the 2% that samples of one launch usually have.
bool clearly_differs(std::span<const double> block, std::span<const double> rest) {
  constexpr double kUsualSpread = 0.02, kUsualWeight = 2;
  const double level = mean_of(rest);
  const double usual = kUsualSpread * level;
  const double df = static_cast<double>(rest.size() - 1) + kUsualWeight;
  const double variance = (kUsualWeight * usual * usual + sum_of_squares(rest)) / df;
  const double tau = integrated_autocorrelation(rest);
  const double block_error = std::min(tau, static_cast<double>(block.size())) / static_cast<double>(block.size());
  const double error = std::sqrt(variance * (block_error + tau / static_cast<double>(rest.size())));
  return std::abs(mean_of(block) - level) > student_t_quantile(0.99, df / tau < 1 ? 1 : df / tau) * error;
}

// MSER minimizes a noisy score and cuts too much of short runs. Of what it would cut only the leading part goes that
// differs clearly from what it keeps.
std::size_t warm_up_of(std::span<const double> samples) {
  // A launch of two: nothing to compare with; a first one a fifth slower has warmed up something.
  if (samples.size() == 2) return samples[0] < 0.8 * samples[1] ? 1 : 0;
  if (samples.size() < 3) return 0;
  const std::size_t cut = mser_cut(samples, samples.size() >= 60 ? 5 : 1);
  const auto rest = samples.subspan(cut);
  std::size_t warm_up = 0;
  while (warm_up < cut && clearly_differs(samples.subspan(warm_up, cut - warm_up), rest)) ++warm_up;
  return warm_up;
}

}  // namespace

double normal_quantile(double p) {
  if (!(p > 0)) return p == 0 ? -kInfinity : std::nan("");
  if (!(p < 1)) return p == 1 ? kInfinity : std::nan("");
  if (p > 0.5) return -normal_quantile(1 - p);
  // Start at Abramowitz and Stegun 26.2.23 (4.5e-4), then Halley's step on erfc until it converges.
  const double u = std::sqrt(-2 * std::log(p));
  double x = -(u - (2.515517 + u * (0.802853 + u * 0.010328)) / (1 + u * (1.432788 + u * (0.189269 + u * 0.001308))));
  for (int i = 0; i < 4; ++i) {
    const double error = 0.5 * std::erfc(-x / std::sqrt(2.0)) - p;
    const double step = error * std::sqrt(2 * M_PI) * std::exp(x * x / 2);
    x -= step / (1 + x * step / 2);
  }
  return x;
}

double student_t_quantile(double p, double degrees_of_freedom) {
  if (!(p > 0 && p < 1)) return normal_quantile(p);
  if (!(degrees_of_freedom > 0)) return std::nan("");
  if (p == 0.5) return 0;
  if (p < 0.5) return -student_t_quantile(1 - p, degrees_of_freedom);
  const double df = degrees_of_freedom, tail = 1 - p;
  if (df >= 2000) return std::isinf(df) ? normal_quantile(p) : expanded_t_quantile(normal_quantile(p), df);
  // Bracket, then Newton's step on the logarithm of the tail, bisection where that leaves the bracket.
  double low = 0, high = 1;
  while (student_t_tail(high, df) > tail && high < 1e300) high *= 2;
  double t = high / 2;
  const double log_norm = std::lgamma((df + 1) / 2) - std::lgamma(df / 2) - 0.5 * std::log(df * M_PI);
  for (int i = 0; i < 200; ++i) {
    const double at = student_t_tail(t, df);
    (at > tail ? low : high) = t;
    const double density = std::exp(log_norm - (df + 1) / 2 * std::log1p(t * t / df));
    double next = t + at * std::log(at / tail) / density;
    if (!(next > low && next < high)) next = (low + high) / 2;
    if (std::abs(next - t) <= 1e-14 * t) return next;
    t = next;
  }
  return t;
}

LaunchSummary summarize_launch(std::span<const double> samples) {
  LaunchSummary summary;
  if (samples.empty()) return summary;
  summary.warm_up = warm_up_of(samples);
  const auto rest = samples.subspan(summary.warm_up);
  const auto n = static_cast<double>(rest.size());
  summary.mean = mean_of(rest);
  summary.effective_samples = n;
  if (rest.size() < 2) return summary;
  const double tau = integrated_autocorrelation(rest);
  summary.effective_samples = n / tau;
  // Of positively correlated samples the sum of squares knows tau / n less of the variance.
  const double variance = sum_of_squares(rest) / std::max(n - tau, n / 2);
  summary.standard_error = std::sqrt(variance * tau / n);
  return summary;
}

PooledSpread pooled_log_spread(std::span<const std::vector<double>> launches_by_config) {
  PooledSpread spread;
  double sum = 0;
  for (const auto& launches : launches_by_config) {
    if (launches.size() < 2) continue;
    std::vector<double> logs;
    logs.reserve(launches.size());
    for (const double launch : launches) logs.push_back(std::log(launch));
    sum += sum_of_squares(logs);
    spread.degrees_of_freedom += static_cast<double>(logs.size() - 1);
  }
  if (spread.degrees_of_freedom > 0) spread.variance = sum / spread.degrees_of_freedom;
  return spread;
}

double LogEstimate::half_width() const {
  if (!(degrees_of_freedom > 0)) return kInfinity;
  return student_t_quantile(0.975, std::max(1.0, degrees_of_freedom)) * std::sqrt(variance);
}

PooledSpread merge(const PooledSpread& first, const PooledSpread& second) {
  const double df = first.degrees_of_freedom + second.degrees_of_freedom;
  if (!(df > 0)) return {};
  return {(first.variance * first.degrees_of_freedom + second.variance * second.degrees_of_freedom) / df, df};
}

LogEstimate log_mean(std::span<const double> launches, const PooledSpread& spread) {
  if (launches.empty()) return {};
  double sum = 0;
  for (const double launch : launches) sum += std::log(launch);
  const auto n = static_cast<double>(launches.size());
  return {sum / n, spread.variance / n, spread.degrees_of_freedom};
}

LogEstimate log_difference(const LogEstimate& a, const LogEstimate& b) {
  LogEstimate difference{a.mean - b.mean, a.variance + b.variance, 0};
  if (!(a.degrees_of_freedom > 0 && b.degrees_of_freedom > 0)) return difference;
  const double weight = a.variance * a.variance / a.degrees_of_freedom + b.variance * b.variance / b.degrees_of_freedom;
  difference.degrees_of_freedom = weight > 0 ? difference.variance * difference.variance / weight
                                             : std::min(a.degrees_of_freedom, b.degrees_of_freedom);
  return difference;
}

LogEstimate paired_log_ratio(std::span<const double> a, std::span<const double> b, const PooledSpread& spread) {
  if (a.empty() || a.size() != b.size()) return {};
  std::vector<double> differences;
  for (std::size_t i = 0; i < a.size(); ++i) differences.push_back(std::log(a[i]) - std::log(b[i]));
  const auto n = static_cast<double>(a.size());
  PooledSpread own;
  if (a.size() > 1) own = {sum_of_squares(differences) / (n - 1), n - 1};
  const PooledSpread all = merge(own, {2 * spread.variance, spread.degrees_of_freedom});
  return {mean_of(differences), all.variance / n, all.degrees_of_freedom};
}

}  // namespace lockstep::tune
