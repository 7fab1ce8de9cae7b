// Spares for the days to come: which way to foretell them from a trace is chosen inside its first 120 days, by the
// score below, and only then applied to the days after. docs/reference/simulate.md has the table.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>

#include "lockstep/sim/failures/bursts.h"
#include "lockstep/sim/failures/faults.h"

namespace lockstep::sim {
namespace {

constexpr double kDay = 86400.0;
constexpr int kNodes = 400;
constexpr int kSamples = 200;

using Source = std::unique_ptr<FaultSource>;

FaultTrace last_of(const FaultTrace& trace, double share) {
  return part_of(trace, (1.0 - share) * trace.seconds, trace.seconds);
}

struct Way {
  const char* name;
  std::function<Source(const FaultTrace&)> source;
};

const std::vector<Way>& ways() {
  static const std::vector<Way> kWays = {
      {"independent",
       [](const FaultTrace& t) {
         return independent_faults(static_cast<double>(t.faults.size()) / (t.seconds * t.nodes),
                                   RepairTimes::observed(t));
       }},
      {"bursts", [](const FaultTrace& t) { return faults_in_bursts(fit_bursts(t)); }},
      {"replay", [](const FaultTrace& t) { return replayed_faults(t); }},
      {"replay of the last half", [](const FaultTrace& t) { return replayed_faults(last_of(t, 1.0 / 2)); }},
      {"replay of the last third", [](const FaultTrace& t) { return replayed_faults(last_of(t, 1.0 / 3)); }},
      {"replay of the last quarter", [](const FaultTrace& t) { return replayed_faults(last_of(t, 1.0 / 4)); }},
      {"continued", [](const FaultTrace& t) { return continued_faults(t); }},
  };
  return kWays;
}

struct Score {
  double expected = 0.0, high = 0.0;  // mean of |ln(foretold / truth)| over the folds
};

// Fitted on the first T days, judged on the 55/120 T days that follow, everything inside `trace`.
Score score_of(const Way& way, const FaultTrace& trace) {
  Score score;
  int folds = 0;
  for (double days = 40; days * (1.0 + 55.0 / 120.0) <= trace.seconds / kDay; days += 3, ++folds) {
    const double fit = days * kDay, judge = 55.0 / 120.0 * fit;
    const double truth = nodes_down(part_of(trace, fit, fit + judge), 0.99);
    const SparesNeeded needed = spares_needed(*way.source(part_of(trace, 0, fit)), kNodes, judge, 0.99, kSamples, 1);
    score.expected += std::abs(std::log(std::max(needed.expected, 0.5) / truth));
    score.high += std::abs(std::log(std::max(needed.high, 0.5) / truth));
  }
  return {score.expected / folds, score.high / folds};
}

class Spares : public testing::Test {
 protected:
  void SetUp() override {
    const auto file = std::filesystem::path(LOCKSTEP_SOURCE_DIR) / "../shared/data/ops/failures/fault_trace.json";
    if (!std::filesystem::exists(file)) GTEST_SKIP() << "the InfiniteHBD trace is not at " << file;
    trace_ = read_fault_trace(file, kNodes);
    trace_.seconds = 175 * kDay;
    first_ = part_of(trace_, 0, 120 * kDay);
  }
  FaultTrace trace_, first_;
};

TEST_F(Spares, way_is_chosen_inside_the_first_120_days) {
  std::string best;
  double least = 1e9;
  for (const Way& way : ways()) {
    const Score score = score_of(way, first_);
    std::printf("%-28s expected %.3f  high %.3f\n", way.name, score.expected, score.high);
    for (const auto& [value, figure] : {std::pair{score.expected, "expected"}, {score.high, "high"}}) {
      if (value < least) least = value, best = std::string(way.name) + ", " + figure;
    }
  }
  EXPECT_EQ(best, "bursts, high");
  EXPECT_GT(least, 0.3) << "the first 120 days do not support a forecast within 10%: say so no longer";
}

TEST_F(Spares, of_the_days_that_follow) {
  const double truth = nodes_down(part_of(trace_, 120 * kDay, 175 * kDay), 0.99);
  std::map<std::string, SparesNeeded> foretold;
  for (const Way& way : ways()) {
    foretold[way.name] = spares_needed(*way.source(first_), kNodes, 55 * kDay, 0.99, 500, 1);
    const SparesNeeded& needed = foretold[way.name];
    std::printf("%-28s %2.0f (%.0f .. %.0f), truth %.0f\n", way.name, needed.expected, needed.low, needed.high, truth);
  }
  // The way that was chosen plans enough, and a third too many; its interval has the truth, as those of the others that
  // know of bursts. Independent failures plan too few.
  const SparesNeeded& chosen = foretold.at("bursts");
  EXPECT_GE(chosen.high, truth);
  EXPECT_LE(chosen.high, 1.5 * truth);
  for (const char* name : {"bursts", "replay", "continued"}) {
    EXPECT_LE(foretold.at(name).low, truth) << name;
    EXPECT_GE(foretold.at(name).high, truth) << name;
  }
  EXPECT_LT(foretold.at("independent").high, truth);
}

}  // namespace
}  // namespace lockstep::sim
