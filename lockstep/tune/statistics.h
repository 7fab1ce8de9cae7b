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
  std::size_t warm_up = 0;    // leading samples left out (MSER, White 1997, at most half)
  double mean = 0;            // of the rest
  double standard_error = 0;  // of that mean, autocorrelation included; 0 when fewer than 2 samples are left
  double effective_samples = 0;
};
LaunchSummary summarize_launch(std::span<const double> samples);

// Launch means of several configurations (rows), relative spread assumed alike: pooled variance of the logarithms.
struct PooledSpread {
  double variance = 0;            // of the logarithm of one launch
  double degrees_of_freedom = 0;  // 0: no configuration has two launches
};
PooledSpread pooled_log_spread(std::span<const std::vector<double>> launches_by_config);

}  // namespace lockstep::tune
