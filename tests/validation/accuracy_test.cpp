#include "validation/accuracy.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "validation/accuracy_report.h"
#include "validation/scatter.h"
#include "validation/stall_fit.h"

namespace lockstep::validation {
namespace {

Scored ran(const std::string& id, double measured, double predicted) {
  return {.id = id,
          .source = "s",
          .hardware = "H100",
          .model = "m",
          .gpus = 8,
          .measured = measured,
          .predicted = predicted,
          .predicted_fits = true};
}

Scored failed(const std::string& id, double predicted, bool fits) {
  return {.id = id, .model = "m", .gpus = 8, .failed = true, .predicted = predicted, .predicted_fits = fits};
}

TEST(Median, OfEvenOddAndNone) {
  EXPECT_DOUBLE_EQ(median_of({3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median_of({4, 1, 2, 3}), 2.5);
  EXPECT_DOUBLE_EQ(median_of({}), 0);
}

TEST(RateError, IsRelativeToTheMeasurement) {
  const ErrorSummary error = rate_error({ran("a", 100, 110), ran("b", 100, 80), ran("c", 100, 101)});
  EXPECT_EQ(error.n, 3u);
  EXPECT_NEAR(error.mean, (0.10 + 0.20 + 0.01) / 3, 1e-12);
  EXPECT_NEAR(error.median, 0.10, 1e-12);
  EXPECT_NEAR(error.largest, 0.20, 1e-12);
  EXPECT_EQ(error.largest_id, "b");
  EXPECT_NEAR(error.bias, std::cbrt(1.1 * 0.8 * 1.01) - 1, 1e-12);
}

TEST(RateError, LeavesOutRunsWithoutEitherFigure) {
  EXPECT_EQ(rate_error({failed("a", 100, true), Scored{.id = "b", .measured = 3}}).n, 0u);
}

TEST(KendallTauB, OfHandWorkedPairs) {
  EXPECT_DOUBLE_EQ(*kendall_tau_b({{1, 1}, {2, 2}, {3, 3}}), 1);
  EXPECT_DOUBLE_EQ(*kendall_tau_b({{1, 3}, {2, 2}, {3, 1}}), -1);
  // Pairs (1,2): +, (1,3): +, (2,3): -: (2 - 1) / 3.
  EXPECT_DOUBLE_EQ(*kendall_tau_b({{1, 1}, {2, 3}, {3, 2}}), 1.0 / 3);
  // One tie on the left: 2 concordant of sqrt(2 x 3).
  EXPECT_DOUBLE_EQ(*kendall_tau_b({{1, 1}, {1, 2}, {2, 3}}), 2 / std::sqrt(6.0));
}

TEST(KendallTauB, IsAbsentWhereNothingCanBeOrdered) {
  EXPECT_FALSE(kendall_tau_b({}));
  EXPECT_FALSE(kendall_tau_b({{1, 1}}));
  EXPECT_FALSE(kendall_tau_b({{1, 1}, {1, 2}}));
}

TEST(FirstPick, LosesTheDistanceToTheBest) {
  const auto groups = rank_groups({ran("fast", 100, 50), ran("picked", 80, 90), ran("slow", 10, 20)});
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].pick, "picked");
  EXPECT_EQ(groups[0].best, "fast");
  EXPECT_NEAR(groups[0].regret, 0.2, 1e-12);
  EXPECT_NEAR(*groups[0].tau, 1.0 / 3, 1e-12);
}

TEST(FirstPick, ThatFailedLosesEverything) {
  const auto groups = rank_groups({ran("good", 100, 50), failed("bad", 90, true)});
  EXPECT_EQ(groups.at(0).pick, "bad");
  EXPECT_DOUBLE_EQ(groups.at(0).regret, 1);
  EXPECT_EQ(summarise(groups).failed_picks, 1u);
}

TEST(FirstPick, PassesOverWhatIsPredictedNotToFit) {
  Scored refused = ran("refused", 100, 90);
  refused.predicted_fits = false;
  const auto groups = rank_groups({refused, ran("fits", 70, 60), failed("bad", 95, false)});
  EXPECT_EQ(groups.at(0).pick, "fits");
  EXPECT_NEAR(groups.at(0).regret, 0.3, 1e-12);
}

TEST(FirstPick, IsTakenAmongAllWhereNothingIsPredictedToFit) {
  const auto groups = rank_groups({failed("bad", 95, false), [] {
                                     Scored run = ran("ran", 10, 20);
                                     run.predicted_fits = false;
                                     return run;
                                   }()});
  EXPECT_EQ(groups.at(0).pick, "bad");
}

// One run of a layout stalled and the next one does not: what counts is what such runs do on average.
TEST(ExpectedRegret, IsOfTheMeanOverNeighbours) {
  const auto near = [](Scored run, const char* degrees, std::int64_t micro) {
    run.degrees = degrees;
    run.micro = micro;
    return run;
  };
  const auto groups =
      rank_groups({near(ran("picked", 20, 99), "tp=2", 2), near(ran("its neighbour", 100, 50), "tp=2", 4),
                   near(ran("too far", 900, 1), "tp=2", 8), near(ran("other degrees", 90, 60), "tp=4", 2)});
  EXPECT_EQ(groups.at(0).pick, "picked");
  EXPECT_NEAR(groups.at(0).regret, 1 - 20.0 / 900, 1e-12);
  EXPECT_NEAR(groups.at(0).expected_regret, 1 - 60.0 / 500, 1e-12);   // the best mean is that of 100 and 900
  EXPECT_NEAR(groups.at(0).regret_of_three, 1 - 340.0 / 500, 1e-12);  // its neighbour is third
}

TEST(ExpectedRegret, IsEverythingWhereThePickFailed) {
  EXPECT_DOUBLE_EQ(rank_groups({ran("good", 100, 50), failed("bad", 90, true)}).at(0).expected_regret, 1);
}

TEST(FitOfStalls, FindsWhatLayoutsAreHitAndWhatItCosts) {
  std::vector<StallExample> examples;
  for (int i = 0; i < 400; ++i) {
    const bool pipeline = i % 2 == 0, hit = pipeline && i % 3 == 0;
    StallExample example{.terms = {1, pipeline ? 1.0 : 0.0}, .slots = 10, .measured_seconds = 1, .ordinary_seconds = 1};
    if (hit) example.measured_seconds = 1 + 10 * 0.8;
    examples.push_back(example);
  }
  const cost::Stalls stalls = fit_stalls(examples);
  EXPECT_EQ(stalls.stalled, 67);
  const auto odds = [&](double pipeline) { return stalls.odds[0] + pipeline * stalls.odds[1]; };
  EXPECT_NEAR(1 / (1 + std::exp(-odds(1))), 1.0 / 3, 0.03);
  EXPECT_LT(odds(0), -4);
  EXPECT_NEAR(std::exp(stalls.seconds[0] + stalls.seconds[1]), 0.8, 0.03);
}

TEST(FitOfStalls, SaysNothingOfAFewRuns) {
  const std::vector<StallExample> few(50, {.terms = {1}, .measured_seconds = 9, .ordinary_seconds = 1});
  EXPECT_EQ(fit_stalls(few), cost::Stalls{});
}

TEST(Groups, AreOfOneModelAndOneNumberOfGpus) {
  Scored other = ran("other", 10, 10);
  other.gpus = 16;
  const auto groups = rank_groups({ran("a", 10, 10), other, failed("only failures", 1, true)});
  EXPECT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].gpus, 8);
  EXPECT_EQ(groups[0].failed, 1u);
}

TEST(BalancedAccuracy, WeighsBothKindsAlike) {
  Scored refused = ran("r", 1, 1);
  refused.predicted_fits = false;
  std::vector<Scored> runs{ran("a", 1, 1), ran("b", 1, 1), ran("c", 1, 1), refused, failed("f", 1, false)};
  EXPECT_DOUBLE_EQ(fit_accuracy(runs).balanced_accuracy(), (0.75 + 1.0) / 2);
  runs.push_back(failed("g", 1, true));
  EXPECT_DOUBLE_EQ(fit_accuracy(runs).balanced_accuracy(), (0.75 + 0.5) / 2);
}

TEST(BalancedAccuracy, CountsWhatWasNotPredictedAndWhatNoMemoryHelps) {
  Scored unknown = failed("u", 1, false);
  unknown.predicted_fits.reset();
  Scored rule = failed("r", 1, false);
  rule.cannot_run = true;
  const FitSummary fit = fit_accuracy({unknown, rule});
  EXPECT_EQ(fit.unpredicted, 1u);
  EXPECT_EQ(fit.cannot_run, 1u);
  EXPECT_EQ(fit.failed_and_refused, 1u);
}

TEST(Intervals, CoverageAndHalfWidth) {
  std::vector<Scored> runs;
  for (const double measured : {95.0, 100.0, 105.0, 120.0, 70.0}) {
    Scored run = ran("x", measured, 100);
    run.low = 90;
    run.high = 112;
    runs.push_back(run);
  }
  const IntervalSummary quality = interval_quality(runs);
  EXPECT_NEAR(quality.coverage, 0.6, 1e-12);
  EXPECT_NEAR(quality.above, 0.2, 1e-12);
  EXPECT_NEAR(quality.below, 0.2, 1e-12);
  EXPECT_NEAR(quality.median_half_width, 0.11, 1e-12);
}

TEST(Scales, GrowAndLeaveOutEmptyOnes) {
  std::vector<Scored> runs;
  for (const std::int64_t gpus : {1024, 8, 9, 64, 1}) {
    runs.push_back(ran("x", 1, 1));
    runs.back().gpus = gpus;
  }
  const auto groups = by_scale(runs);
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].first, "1-8");
  EXPECT_EQ(groups[0].second.size(), 2u);
  EXPECT_EQ(groups[1].first, "9-64");
  EXPECT_EQ(groups[2].first, ">512");
}

TEST(BindingTerm, IsTheLargestBesideCompute) {
  Scored run = ran("x", 1, 1);
  run.shares = {{"compute", 0.5}, {"tp_comm", 0.2}, {"bubble", 0.3}};
  EXPECT_EQ(binding_term(run), "bubble");
  run.shares = {{"compute", 0.9}, {"tp_comm", 0.1}};
  EXPECT_EQ(binding_term(run), "compute");
}

TEST(Report, SaysWhichClaimsDoNotHold) {
  AccuracyReport report{.method = "made up", .rates = {ran("a", 100, 105), ran("b", 100, 150)}};
  const std::vector<Target> targets = targets_of(report);
  const auto mean = std::find_if(targets.begin(), targets.end(),
                                 [](const Target& target) { return target.what.starts_with("mean absolute"); });
  ASSERT_NE(mean, targets.end());
  EXPECT_NEAR(mean->reached, 0.275, 1e-12);
  EXPECT_FALSE(mean->holds());
  const std::string text = to_text(report, {.width = 100});
  EXPECT_NE(text.find("27.5%"), std::string::npos) << text;
  EXPECT_NE(text.find("NO"), std::string::npos);
}

TEST(Report, EscapesWhatRowsSay) {
  Scored run = ran("<script>", 100, 105);
  run.source = "a & b";
  const std::string html = to_html({.rates = {run}});
  EXPECT_EQ(html.find("<script>"), std::string::npos);
  EXPECT_NE(html.find("a &amp; b"), std::string::npos);
}

TEST(Scatter, DrawsEveryDrawablePoint) {
  const std::string svg = scatter_svg({{"s", {{10, 11, "a"}, {100, 90, "b"}, {0, 5, "no"}, {NAN, 5, "no"}}}}, {});
  std::size_t dots = 0;
  for (std::size_t at = svg.find("<title>"); at != std::string::npos; at = svg.find("<title>", at + 1)) ++dots;
  EXPECT_EQ(dots, 2u);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_NE(scatter_svg({}, {}).find("nothing to show"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::validation
