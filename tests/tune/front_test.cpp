// Several objectives: the arithmetic of fronts, and studies whose front is known.
#include "lockstep/tune/objectives/front.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lockstep/tune/objectives/pareto.h"
#include "tests/base/expect_user_error.h"

namespace lockstep::tune {
namespace {

using testing::user_error;

TEST(Pareto, PointsThatAnotherBeatsAreNotOnTheFront) {
  EXPECT_TRUE(dominates({2, 2}, {1, 2}));
  EXPECT_FALSE(dominates({2, 2}, {2, 2}));
  EXPECT_FALSE(dominates({2, 1}, {1, 2}));
  const std::vector<Scores> points{{1, 4}, {2, 2}, {1, 1}, {3, 1}, {2, 2}};
  EXPECT_EQ(front_of(points), (std::vector<std::size_t>{0, 1, 3}));
}

TEST(Pareto, TheVolumeOfAStaircaseIsThatOfItsSteps) {
  const std::vector<Scores> points{{1, 4}, {2, 2}, {3, 1}, {1, 1}};
  EXPECT_DOUBLE_EQ(hypervolume(points, {0, 0}), 1 * 4 + 1 * 2 + 1 * 1);
  EXPECT_DOUBLE_EQ(hypervolume(points, {1, 1}), 1);
  EXPECT_DOUBLE_EQ(hypervolume(points, {5, 5}), 0);
}

TEST(Pareto, InThreeDimensionsBoxesThatOverlapCountOnce) {
  const std::vector<Scores> points{{2, 2, 1}, {1, 1, 3}, {3, 1, 1}};
  // 2x2x1 + 1x1x(3-1) + (3-2)x1x1
  EXPECT_DOUBLE_EQ(hypervolume(points, {0, 0, 0}), 4 + 2 + 1);
}

TEST(Pareto, APointGainsWhatTheVolumeGrowsBy) {
  Random random(5);
  std::uniform_real_distribution<double> uniform;
  for (const std::size_t dimensions : {2u, 3u, 4u}) {
    const auto draw = [&] {
      Scores point;
      for (std::size_t i = 0; i < dimensions; ++i) point.push_back(uniform(random));
      return point;
    };
    std::vector<Scores> points;
    for (int i = 0; i < 12; ++i) points.push_back(draw());
    const Scores reference(dimensions, 0.1);
    for (int i = 0; i < 20; ++i) {
      const Scores point = draw();
      std::vector<Scores> with(points);
      with.push_back(point);
      EXPECT_NEAR(hypervolume_gain(points, point, reference),
                  hypervolume(with, reference) - hypervolume(points, reference), 1e-12);
    }
  }
}

TEST(Objectives, AreReadAsPeopleWriteThem) {
  const std::vector<Objective> objectives = parse_objectives("memory, tokens_per_second,min:latency_ms");
  ASSERT_EQ(objectives.size(), 3u);
  EXPECT_EQ(objectives[0].name, "tokens_per_second") << "throughput comes first";
  EXPECT_EQ(printed_values(objectives), (std::vector<std::string>{"memory_bytes", "latency_ms"}));
  EXPECT_FALSE(objectives[2].largest);
  EXPECT_EQ(parse_objectives(to_text(objectives)), objectives);
  EXPECT_EQ(parse_objectives("dollars").front().source, Objective::Source::kThroughput);
  EXPECT_NE(user_error([] { parse_objectives("tokens_per_second,speed"); }).find("`speed` is not known"),
            std::string::npos);
  EXPECT_NE(user_error([] { parse_objectives("memory,memory"); }).find("twice"), std::string::npos);
}

TEST(Objectives, DollarsAreThoseOfTheDevicesThatWereHeld) {
  Trial trial;
  trial.throughput = 1000;
  trial.seconds = 10;
  trial.gpu_seconds = 40;  // four devices
  const Objective dollars = parse_objectives("dollars")[1];
  EXPECT_NEAR(*value_of(dollars, trial, 3.6), 4 * 3.6 / 3600 / 1000 * 1e6, 1e-9);
  trial.outcome = Outcome::kOutOfMemory;
  EXPECT_FALSE(value_of(dollars, trial, 3.6));
}

Space trade_space() {
  return Space::parse(
      "knobs:\n"
      "  k0: {choices: [1, 2, 4, 8, 16, 32], default: 1}\n"
      "  k1: {int: [0, 8], default: 0}\n"
      "  k2: {choices: [a, b, c], default: c}\n"
      "  k3: {choices: [false, true], default: false}\n",
      "front_test");
}

struct Truth {
  double speed, memory;
};

// More of k0 is faster and takes memory; k3 saves memory and costs speed; k1 has one best value and k2 = b is best, at
// no cost: 12 of 324 settings are on the front at most.
Truth truth_of(const Config& config) {
  const auto k0 = static_cast<double>(std::get<std::int64_t>(config.values[0]));
  const auto k1 = static_cast<double>(std::get<std::int64_t>(config.values[1]));
  const std::string& k2 = std::get<std::string>(config.values[2]);
  const bool k3 = to_text(config.values[3]) == "true";
  const double speed = 1000 * k0 / (k0 + 3) * std::exp(-0.06 * std::fabs(k1 - 5)) *
                       (k2 == "b"   ? 1.0
                        : k2 == "a" ? 0.85
                                    : 0.7);
  return {speed * (k3 ? 0.8 : 1.0), (8 + 2 * k0 * (k3 ? 0.5 : 1.0)) * 1e9};
}

Trial launch(const Proposal& proposal, std::int64_t number) {
  const Truth truth = truth_of(proposal.config);
  Random random(static_cast<std::uint64_t>(number) + 7);
  Trial trial;
  trial.number = number;
  trial.config = proposal.config;
  trial.purpose = proposal.purpose;
  trial.seconds = trial.gpu_seconds = 10;
  trial.throughput = truth.speed * std::exp(0.03 * std::normal_distribution<double>()(random));
  trial.samples = {trial.throughput};
  trial.values["memory_bytes"] = truth.memory;
  return trial;
}

StrategyOptions two_objectives(std::int64_t trials) {
  StrategyOptions options;
  options.trials = trials;
  options.objectives = parse_objectives("tokens_per_second,memory");
  return options;
}

std::vector<Trial> run(const Strategy& strategy) {
  std::vector<Trial> history;
  while (const std::optional<Proposal> proposal = strategy.next(history))
    history.push_back(launch(*proposal, static_cast<std::int64_t>(history.size())));
  return history;
}

Scores score(const Truth& truth) { return {std::log(truth.speed), -std::log(truth.memory)}; }

TEST(FrontStudy, FindsNearlyAllOfAKnownFront) {
  const Space space = trade_space();
  std::vector<Scores> all;
  const auto settings = space.enumerate();
  ASSERT_TRUE(settings);
  for (const Config& config : *settings) all.push_back(score(truth_of(config)));
  const Scores reference = score({100, 80e9});
  const Strategy strategy(space, two_objectives(30));
  const std::vector<Trial> history = run(strategy);
  ASSERT_EQ(history.size(), 30u);
  const Conclusion found = conclude(strategy, history);
  ASSERT_TRUE(found.front);
  std::vector<Scores> front;
  for (const Front::Point& point : found.front->points) front.push_back(score(truth_of(point.config)));
  EXPECT_GE(front.size(), 4u);
  EXPECT_GE(hypervolume(front, reference), 0.95 * hypervolume(all, reference));
  EXPECT_EQ(found.best->config, found.front->points.front().config) << "the fastest member is the best";
}

TEST(FrontStudy, EndsWithFreshLaunchesOfMembers) {
  const Strategy strategy(trade_space(), two_objectives(30));
  const std::vector<Trial> history = run(strategy);
  for (std::size_t i = 0; i < history.size(); ++i) EXPECT_EQ(history[i].purpose == Purpose::kConfirm, i >= 24) << i;
  const Conclusion found = conclude(strategy, history);
  std::int64_t fresh = 0;
  for (const Front::Point& point : found.front->points) {
    for (const Estimate& value : point.values) {
      EXPECT_LE(value.low, value.value);
      EXPECT_LE(value.value, value.high);
    }
    fresh += point.provisional ? 0 : 1;
    EXPECT_NEAR(point.values[1].value, truth_of(point.config).memory, 0.2 * point.values[1].value);
  }
  EXPECT_GE(fresh, 3);
}

TEST(FrontStudy, IsAPureFunctionOfTheHistory) {
  const Strategy strategy(trade_space(), two_objectives(14)), again(trade_space(), two_objectives(14));
  const std::vector<Trial> history = run(strategy);
  for (const std::size_t made : {1u, 6u, 11u, 13u}) {
    const std::span<const Trial> so_far(history.data(), made);
    const auto first = strategy.next(so_far), second = again.next(so_far);
    ASSERT_TRUE(first && second);
    EXPECT_EQ(first->config, history[made].config);
    EXPECT_EQ(second->config, history[made].config);
  }
}

TEST(FrontStudy, TrialsAtTheSameTimeDiffer) {
  const Strategy strategy(trade_space(), two_objectives(40));
  std::vector<Trial> history = run(Strategy(trade_space(), two_objectives(12)));
  for (Trial& trial : history)
    if (trial.purpose == Purpose::kConfirm) trial.purpose = Purpose::kReplicate;
  std::vector<Trial> pending;
  for (int i = 0; i < 4; ++i) {
    const auto proposal = strategy.next(history, pending);
    ASSERT_TRUE(proposal);
    for (const Trial& other : pending) EXPECT_FALSE(other.config == proposal->config);
    pending.push_back(launch(*proposal, 100 + i));
    pending.back().samples.clear();
  }
}

TEST(FrontStudy, ATrialThatLacksAFigureIsNotOnTheFront) {
  const Strategy strategy(trade_space(), two_objectives(30));
  std::vector<Trial> history;
  for (const char* choice : {"a", "b"}) {
    Proposal proposal;
    proposal.config = trade_space().default_config();
    proposal.config.values[2] = std::string(choice);
    history.push_back(launch(proposal, static_cast<std::int64_t>(history.size())));
  }
  history[1].values.clear();
  const Front front = find_front(strategy.space(), strategy.options(), history);
  ASSERT_EQ(front.points.size(), 1u);
  EXPECT_EQ(front.points[0].config, history[0].config);
}

}  // namespace
}  // namespace lockstep::tune
