#include "lockstep/tune/models/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace lockstep::tune {
namespace {

TEST(NormalQuantile, equals_the_tables) {
  EXPECT_NEAR(normal_quantile(0.5), 0, 1e-12);
  EXPECT_NEAR(normal_quantile(0.975), 1.959963984540054, 1e-12);
  EXPECT_NEAR(normal_quantile(0.995), 2.575829303548901, 1e-12);
  EXPECT_NEAR(normal_quantile(0.05), -1.6448536269514722, 1e-12);
  EXPECT_NEAR(normal_quantile(1e-10), -6.361340902404056, 1e-9);
  EXPECT_TRUE(std::isinf(normal_quantile(0)));
  EXPECT_TRUE(std::isnan(normal_quantile(1.5)));
}

TEST(StudentQuantile, equals_the_tables) {
  EXPECT_NEAR(student_t_quantile(0.975, 1), 12.706204736174698, 1e-8);
  EXPECT_NEAR(student_t_quantile(0.975, 2), 4.302652729911275, 1e-8);
  EXPECT_NEAR(student_t_quantile(0.975, 3), 3.182446305284263, 1e-8);
  EXPECT_NEAR(student_t_quantile(0.975, 4), 2.7764451051977987, 1e-8);
  EXPECT_NEAR(student_t_quantile(0.975, 10), 2.2281388519649385, 1e-8);
  EXPECT_NEAR(student_t_quantile(0.975, 30), 2.0422724563012373, 1e-8);
  EXPECT_NEAR(student_t_quantile(0.95, 7), 1.894578605061305, 1e-8);
  EXPECT_NEAR(student_t_quantile(0.999, 5), 5.893429531356011, 1e-8);
  EXPECT_NEAR(student_t_quantile(0.025, 4), -2.7764451051977987, 1e-8);
}

TEST(StudentQuantile, of_one_and_two_degrees_has_a_closed_form) {
  for (const double p : {0.001, 0.2, 0.5001, 0.6, 0.9, 0.9999}) {
    const double a = 2 * p - 1;
    EXPECT_NEAR(student_t_quantile(p, 1) / std::tan(M_PI * (p - 0.5)), 1, 1e-9) << p;
    EXPECT_NEAR(student_t_quantile(p, 2) / (a * std::sqrt(2 / (1 - a * a))), 1, 1e-9) << p;
  }
}

TEST(StudentQuantile, takes_fractional_degrees_and_goes_over_into_the_normal) {
  EXPECT_GT(student_t_quantile(0.975, 2.5), student_t_quantile(0.975, 2.6));
  EXPECT_LT(student_t_quantile(0.975, 2.5), student_t_quantile(0.975, 2.4));
  EXPECT_NEAR(student_t_quantile(0.975, 1999.999), student_t_quantile(0.975, 2000), 1e-8);
  EXPECT_NEAR(student_t_quantile(0.975, std::numeric_limits<double>::infinity()), normal_quantile(0.975), 1e-12);
}

TEST(WarmUp, is_left_out_of_short_runs_when_it_is_clear) {
  EXPECT_EQ(summarize_launch(std::vector<double>{60, 100, 101}).warm_up, 1u);
  EXPECT_EQ(summarize_launch(std::vector<double>{40, 80, 100, 101, 99, 100}).warm_up, 2u);
  EXPECT_EQ(summarize_launch(std::vector<double>{70, 100, 99, 101, 102, 98, 100, 100, 99, 101}).warm_up, 1u);
  EXPECT_EQ(summarize_launch(std::vector<double>{50, 100}).warm_up, 1u);
}

TEST(WarmUp, keeps_what_is_not_clear) {
  EXPECT_EQ(summarize_launch(std::vector<double>{97, 100, 102}).warm_up, 0u);
  EXPECT_EQ(summarize_launch(std::vector<double>{97, 100}).warm_up, 0u);
  EXPECT_EQ(summarize_launch(std::vector<double>{100}).warm_up, 0u);
  EXPECT_EQ(summarize_launch(std::vector<double>{}).warm_up, 0u);
  EXPECT_EQ(summarize_launch(std::vector<double>{100, 100, 100, 100}).warm_up, 0u);
}

TEST(WarmUp, of_noise_alone_is_seldom_cut_and_never_more_than_half) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> noise(0, 1);
  for (const int n : {3, 5, 8, 10, 30}) {
    int cut = 0;
    double sum = 0;
    for (int run = 0; run < 2000; ++run) {
      std::vector<double> samples;
      for (int i = 0; i < n; ++i) samples.push_back(100 + 3 * noise(random));
      const LaunchSummary summary = summarize_launch(samples);
      cut += summary.warm_up > 0;
      sum += summary.mean;
      EXPECT_LE(summary.warm_up, static_cast<std::size_t>(n) / 2);
    }
    EXPECT_LT(cut, 2000 * 0.07) << n;
    EXPECT_NEAR(sum / 2000, 100, 0.25) << n;  // cutting low starts must not lift the figure
  }
}

TEST(WarmUp, of_a_slow_start_does_not_pull_the_mean_down) {
  std::mt19937_64 random(8);
  std::normal_distribution<double> noise(0, 1);
  for (const int n : {5, 10, 40, 200}) {
    double sum = 0, plain = 0;
    for (int run = 0; run < 500; ++run) {
      std::vector<double> samples;
      for (int i = 0; i < n; ++i) samples.push_back(100 * (1 - 0.5 * std::exp(-i / (0.02 * n + 0.3))) + noise(random));
      sum += summarize_launch(samples).mean;
      for (const double sample : samples) plain += sample / n;
    }
    EXPECT_NEAR(sum / 500, 100, 1.5) << n;  // a second sample of 96 is kept where only five tell
    EXPECT_LT(plain / 500, sum / 500 - 0.5) << n;
  }
}

// Share of runs whose 95% interval for the mean covers it.
double coverage_of_ar1(double rho, int n, int runs) {
  std::mt19937_64 random(42);
  std::normal_distribution<double> noise(0, 1);
  int covered = 0;
  for (int run = 0; run < runs; ++run) {
    std::vector<double> samples;
    double state = noise(random);
    for (int i = 0; i < n; ++i) {
      samples.push_back(100 + 2 * state);
      state = rho * state + std::sqrt(1 - rho * rho) * noise(random);
    }
    const LaunchSummary summary = summarize_launch(samples);
    const double t = student_t_quantile(0.975, std::max(1.0, summary.effective_samples - 1));
    covered += std::abs(summary.mean - 100) <= t * summary.standard_error;
  }
  return static_cast<double>(covered) / runs;
}

TEST(WithinLaunch, intervals_of_independent_samples_cover) {
  for (const int n : {3, 5, 10, 30, 100}) {
    EXPECT_GT(coverage_of_ar1(0, n, 3000), 0.92) << n;
    EXPECT_LT(coverage_of_ar1(0, n, 3000), 0.99) << n;
  }
}

TEST(WithinLaunch, intervals_of_correlated_samples_cover_where_there_are_enough) {
  EXPECT_GT(coverage_of_ar1(0.5, 30, 3000), 0.86);
  EXPECT_GT(coverage_of_ar1(0.5, 100, 3000), 0.90);
  EXPECT_GT(coverage_of_ar1(0.8, 100, 3000), 0.87);
  EXPECT_GT(coverage_of_ar1(0.8, 400, 1500), 0.90);
}

TEST(WithinLaunch, two_samples_have_an_error_and_one_has_none) {
  EXPECT_NEAR(summarize_launch(std::vector<double>{98, 102}).standard_error, 2, 1e-12);
  EXPECT_EQ(summarize_launch(std::vector<double>{98}).standard_error, 0);
  EXPECT_EQ(summarize_launch(std::vector<double>{98}).mean, 98);
}

TEST(PooledSpread, pools_the_squares_and_counts_the_degrees) {
  const std::vector<std::vector<double>> launches{
      {100, 100 * std::exp(0.2)}, {7}, {1, std::exp(0.3), std::exp(0.6)}, {}};
  const PooledSpread spread = pooled_log_spread(launches);
  EXPECT_EQ(spread.degrees_of_freedom, 3);
  EXPECT_NEAR(spread.variance, (0.02 + 0.18) / 3, 1e-12);
  EXPECT_EQ(pooled_log_spread(std::vector<std::vector<double>>{{5}, {6}}).degrees_of_freedom, 0);
}

TEST(LogDifference, has_the_degrees_of_welch_and_satterthwaite) {
  // s1^2/n1 = 0.5, 9 degrees; s2^2/n2 = 0.25, 4 degrees: 0.75^2 / (0.25/9 + 0.0625/4) = 12.96.
  EXPECT_NEAR(log_difference({1, 0.5, 9}, {0, 0.25, 4}).degrees_of_freedom, 12.96, 1e-9);
  EXPECT_EQ(log_difference({1, 0.5, 9}, {0, 0.25, 0}).degrees_of_freedom, 0);
  EXPECT_TRUE(std::isinf(log_difference({1, 0.5, 9}, {0, 0.25, 0}).half_width()));
}

TEST(PairedRatio, cancels_what_a_round_shares) {
  std::vector<double> a, b;
  for (const double drift : {1.0, 0.8, 1.2, 0.7}) {
    a.push_back(110 * drift);
    b.push_back(100 * drift);
  }
  const LogEstimate ratio = paired_log_ratio(a, b);
  EXPECT_NEAR(std::exp(ratio.mean), 1.1, 1e-12);
  EXPECT_NEAR(ratio.half_width(), 0, 1e-9);
  EXPECT_EQ(ratio.degrees_of_freedom, 3);
}

TEST(PairedRatio, covers_with_and_without_drift_and_with_a_spread_from_elsewhere) {
  std::mt19937_64 random(5);
  std::normal_distribution<double> noise(0, 1);
  for (const double drift : {0.0, 0.05}) {
    for (const bool pooled : {false, true}) {
      int covered = 0;
      constexpr int kRuns = 4000;
      for (int run = 0; run < kRuns; ++run) {
        std::vector<double> a, b;
        std::vector<std::vector<double>> others(5);
        for (int round = 0; round < 3; ++round) {
          const double shared = drift * noise(random);
          a.push_back(std::exp(0.1 + shared + 0.03 * noise(random)));
          b.push_back(std::exp(shared + 0.03 * noise(random)));
        }
        for (auto& row : others) row = {std::exp(0.03 * noise(random)), std::exp(0.03 * noise(random))};
        const LogEstimate ratio = paired_log_ratio(a, b, pooled ? pooled_log_spread(others) : PooledSpread{});
        covered += std::abs(ratio.mean - 0.1) <= ratio.half_width();
      }
      EXPECT_NEAR(covered / static_cast<double>(kRuns), 0.95, 0.012) << drift << " " << pooled;
    }
  }
}

}  // namespace
}  // namespace lockstep::tune
