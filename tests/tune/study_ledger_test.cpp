// The ledger, and what racing stops.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "lockstep/tune/models/statistics.h"
#include "lockstep/tune/space/space.h"
#include "lockstep/tune/study/racing.h"
#include "lockstep/tune/study/study_ledger.h"

namespace lockstep::tune {
namespace {

Trial ended(double seconds, double devices = 1, std::size_t samples = 10, double budget = 60) {
  Trial trial;
  trial.budget_seconds = budget;
  trial.seconds = seconds;
  trial.gpu_seconds = seconds * devices;
  trial.samples.assign(samples, 100.0);
  trial.throughput = 100;
  return trial;
}

TEST(Ledger, CountsWithoutALimit) {
  Ledger ledger(0, 5);
  ledger.charge(ended(60, 8));
  EXPECT_EQ(ledger.spent(), 485);
  EXPECT_TRUE(std::isinf(ledger.left()));
  const auto allowance = ledger.allow(60, 60, 8);
  ASSERT_TRUE(allowance);
  EXPECT_EQ(allowance->budget_seconds, 60);
  EXPECT_EQ(allowance->hard_seconds, 0);
}

TEST(Ledger, GivesNoTrialMoreThanIsLeft) {
  Ledger ledger(1000, 0);
  ledger.charge(ended(100, 8));
  EXPECT_EQ(ledger.left(), 200);
  const auto allowance = ledger.allow(60, 1, 8);  // 25 s on 8 devices
  ASSERT_TRUE(allowance);
  EXPECT_LT(allowance->budget_seconds, 25);
  EXPECT_GT(allowance->budget_seconds, 22);
  EXPECT_EQ(allowance->hard_seconds, 25);
  EXPECT_EQ(ledger.allow(10, 1, 8)->budget_seconds, 10);
  EXPECT_FALSE(ledger.allow(60, 30, 8)) << "30 s are needed and 25 are left";
}

TEST(Ledger, InterruptedAttemptsAndPromisesAreNotLeft) {
  Ledger ledger(100, 30);
  EXPECT_EQ(ledger.left(), 70);
  ledger.promise(3, 50);
  EXPECT_EQ(ledger.left(), 20);
  ledger.settle(3);
  EXPECT_EQ(ledger.left(), 70);
  ledger.charge(ended(71));
  EXPECT_FALSE(ledger.allow(60, 0, 1));
}

TEST(Ledger, WhatAKillLostDoesNotShowInTheLastTrial) {
  const auto undisturbed = Ledger(100.5, 60).allow(60, 1, 1), disturbed = Ledger(100.5, 60.1).allow(60, 1, 1);
  EXPECT_EQ(undisturbed->budget_seconds, disturbed->budget_seconds);
}

TEST(NeededSeconds, AreLearnedFromWhatWasMeasured) {
  EXPECT_EQ(needed_seconds({}, 60, true), 6);
  const std::vector<Trial> trials{ended(50), ended(40), ended(60)};
  EXPECT_EQ(needed_seconds(trials, 60, true), 20);
  const std::vector<Trial> whole{ended(50, 1, 1), ended(40, 1, 1)};
  EXPECT_EQ(needed_seconds(whole, 60, true), 40) << "a single sample comes at the end";
}

TEST(NeededSeconds, OfAWorkerThatDoesNotAdaptAreTheLongest) {
  const std::vector<Trial> trials{ended(50), ended(40)};
  EXPECT_EQ(needed_seconds(trials, 60, false), 50);
  EXPECT_EQ(needed_seconds(trials, 30, false), 25);
  const std::vector<Trial> overran{ended(50), ended(80)};
  EXPECT_EQ(needed_seconds(overran, 30, false), 80);
}

std::vector<double> samples_around(double mean, std::size_t count) {
  std::vector<double> samples;
  for (std::size_t i = 0; i < count; ++i) samples.push_back(mean * (i % 2 == 0 ? 1.01 : 0.99));
  return samples;
}

TEST(Race, StopsWhatIsClearlyWorse) {
  const std::vector<Trial> history{ended(60)};  // 100
  const Race race(history);
  EXPECT_EQ(race.best(), 100);
  EXPECT_TRUE(race.is_hopeless(samples_around(50, 10)));
  EXPECT_TRUE(race.is_hopeless(samples_around(75, 10)));
  EXPECT_FALSE(race.is_hopeless(samples_around(90, 10))) << "launches differ by some percent";
  EXPECT_FALSE(race.is_hopeless(samples_around(120, 10)));
}

TEST(Race, WaitsForEnoughSamplesAndForWarmUp) {
  const std::vector<Trial> history{ended(60)};
  const Race race(history);
  EXPECT_FALSE(race.is_hopeless(samples_around(50, 5)));
  std::vector<double> warming(5, 20.0);  // a slow start, then as good as the best
  for (int i = 0; i < 8; ++i) warming.push_back(100 + i % 2);
  EXPECT_FALSE(race.is_hopeless(warming));
}

// Launches of about `mean` with a slow first step, as most have.
Trial ran_to_its_end(double mean, int number) {
  Trial trial = ended(60);
  trial.config.values = {std::int64_t{number}};
  trial.samples = samples_around(mean * (1 + 0.01 * (number % 3 - 1)), 10);
  trial.samples[0] *= 0.6;
  trial.throughput = summarize_launch(trial.samples).mean;
  return trial;
}

TEST(Race, TheFirstStepsAreEnoughOnceLaunchesAreKnown) {
  std::vector<Trial> history;
  for (int i = 0; i < 8; ++i) history.push_back(ran_to_its_end(100 - 5 * i, i));
  const Race race(history);
  const auto first_two = [](double mean) { return std::vector<double>{0.6 * mean, 1.01 * mean}; };
  EXPECT_TRUE(race.is_hopeless(first_two(60)));
  EXPECT_FALSE(race.is_hopeless(first_two(97))) << "the slow first step is no sign of a slow setting";
  EXPECT_FALSE(race.is_hopeless(first_two(130)));
  history.resize(4);
  EXPECT_FALSE(Race(history).is_hopeless(first_two(60))) << "four launches do not say how launches go on";
}

TEST(Race, ASettingAsGoodAsTheBestIsHardlyEverStopped) {
  Random random(11);
  std::normal_distribution<double> normal;
  const auto launch = [&](double mean, std::int64_t setting) {
    Trial trial = ended(60);
    trial.config.values = {setting};
    const double factor = std::exp(0.03 * normal(random));
    trial.samples.clear();
    for (int i = 0; i < 12; ++i)
      trial.samples.push_back(mean * factor * (i == 0 ? 0.7 : 1.0) * std::exp(0.03 * normal(random)));
    trial.throughput = summarize_launch(trial.samples).mean;
    return trial;
  };
  int stopped = 0, stopped_slow = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<Trial> history;
    for (int i = 0; i < 10; ++i) history.push_back(launch(i == 0 ? 100 : 70 + i, i));
    const Race race(history);
    const auto is_stopped = [&](double mean) {
      const Trial trial = launch(mean, 100);
      for (std::size_t first = 1; first < trial.samples.size(); ++first)
        if (race.is_hopeless(std::span(trial.samples).first(first))) return true;
      return false;
    };
    stopped += is_stopped(100) ? 1 : 0;
    stopped_slow += is_stopped(70) ? 1 : 0;
  }
  EXPECT_LE(stopped, 6) << "of 300";
  EXPECT_GE(stopped_slow, 200);
}

TEST(Race, NothingIsHopelessBeforeSomethingRan) {
  std::vector<Trial> history{ended(60)};
  history[0].outcome = Outcome::kOutOfMemory;
  EXPECT_FALSE(Race(history).is_hopeless(samples_around(1, 20)));
}

TEST(Race, AWideSpreadBetweenLaunchesMakesItPatient) {
  std::vector<Trial> history;
  for (const double throughput : {60.0, 140.0, 70.0, 130.0, 80.0, 120.0}) {
    history.push_back(ended(60));
    history.back().throughput = throughput;
  }
  EXPECT_GT(Race(history).launch_variance(), 0.05);
  EXPECT_FALSE(Race(history).is_hopeless(samples_around(60, 10)));
}

TEST(Race, OnlyExplorationIsStopped) {
  for (const Purpose purpose :
       {Purpose::kBaseline, Purpose::kReplicate, Purpose::kConfirm, Purpose::kControl, Purpose::kSetBack})
    EXPECT_FALSE(may_stop_early(purpose));
  EXPECT_TRUE(may_stop_early(Purpose::kExplore));
}

}  // namespace
}  // namespace lockstep::tune
