// Statistics of throughput measurements. Natural logarithms are used where ratios matter; no globals, no clocks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::tune {

// Student's t and normal quantiles (two-sided 95%: p = 0.975); degrees of freedom may be fractional, >= 1.
double student_t_quantile(double p, double degrees_of_freedom);
double normal_quantile(double p);

// Samples of one launch, in order of time.
struct LaunchSummary {
  std::size_t warm_up = 0;    // leading samples dropped (MSER, White 1997, at most half), only what clearly differs
  double mean = 0;            // of the rest
  double standard_error = 0;  // of that mean, autocorrelation included; 0 when fewer than 2 samples are left
  double effective_samples = 0;
};
LaunchSummary summarize_launch(std::span<const double> samples);

// Launch means of several configurations (rows), relative spread assumed equal: pooled variance of the logarithms.
struct PooledSpread {
  double variance = 0;            // of the logarithm of one launch
  double degrees_of_freedom = 0;  // 0: no configuration has two launches
};
PooledSpread pooled_log_spread(std::span<const std::vector<double>> launches_by_config);

// A quantity in logarithms: its estimate, the variance of that estimate, and how well that variance is known.
struct LogEstimate {
  double mean = 0;
  double variance = 0;
  double degrees_of_freedom = 0;  // 0: the variance is not known at all; infinity: it is exact
  // Half the two-sided 95% interval: t x standard error; infinity when the variance is not known.
  double half_width() const;
};

// Variance of one launch's logarithm from the values themselves and from what is known from elsewhere, weighted by
// degrees of freedom.
PooledSpread merge(const PooledSpread& first, const PooledSpread& second);

// Mean of the logarithms of `launches`, with `spread` (which may include these launches) as the variance of one.
LogEstimate log_mean(std::span<const double> launches, const PooledSpread& spread);

// log(a) - log(b) of two independent estimates; degrees of freedom by Welch and Satterthwaite.
LogEstimate log_difference(const LogEstimate& a, const LogEstimate& b);

// log(a[i]) - log(b[i]) over rounds i: what both launches of a round share (the machine's state at that time) cancels.
// The spread of the differences is taken from the rounds and from `spread` of single launches (twice its variance:
// launches further apart never share more than those of a round, so the interval is honest, and not as wide as one from
// two or three rounds alone). Sizes must be equal.
LogEstimate paired_log_ratio(std::span<const double> a, std::span<const double> b, const PooledSpread& spread = {});

}  // namespace lockstep::tune
