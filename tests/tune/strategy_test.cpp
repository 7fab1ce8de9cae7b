#include "lockstep/tune/study/strategy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <regex>
#include <set>

#include "lockstep/tune/models/feasibility.h"
#include "lockstep/tune/models/memory_sketch.h"
#include "lockstep/tune/study/conclusion.h"

namespace lockstep::tune {
namespace {

Space training_space() {
  return Space::parse(
      "knobs:\n"
      "  micro_batch: {choices: [1, 2, 4, 8, 16, 32], default: 1}\n"
      "  num_workers: {int: [0, 8], default: 1}\n"
      "  recompute: {choices: [none, full], default: full}\n"
      "  algorithm: {choices: [ring, tree], default: ring}\n",
      "strategy_test");
}

// Faster with the micro-batch until memory ends, with about four workers, without recomputation, with a tree.
Trial evaluate(const Space& space, const Proposal& proposal, std::int64_t number, double noise) {
  Trial trial;
  trial.number = number;
  trial.config = proposal.config;
  trial.purpose = proposal.purpose;
  trial.set_back_knob = proposal.set_back_knob;
  trial.seconds = trial.gpu_seconds = 10;
  const double micro = static_cast<double>(std::get<std::int64_t>(proposal.config.values[0]));
  const double workers = static_cast<double>(std::get<std::int64_t>(proposal.config.values[1]));
  const bool full = std::get<std::string>(proposal.config.values[2]) == "full";
  const bool tree = std::get<std::string>(proposal.config.values[3]) == "tree";
  if (micro * (full ? 0.2 : 1.0) > 5) {
    trial.outcome = Outcome::kOutOfMemory;
    return trial;
  }
  Random random(static_cast<std::uint64_t>(number) + 77);
  const double speed =
      1000 * micro / (micro + 2) * std::exp(-0.05 * std::fabs(workers - 4)) * (full ? 0.75 : 1.0) * (tree ? 1.1 : 1.0);
  trial.throughput = speed * std::exp(noise * std::normal_distribution<double>()(random));
  trial.samples = {trial.throughput};
  (void)space;
  return trial;
}

std::vector<Trial> run(const Strategy& strategy, double noise = 0.03) {
  std::vector<Trial> history;
  while (const std::optional<Proposal> proposal = strategy.next(history)) {
    std::string why;
    EXPECT_TRUE(strategy.space().is_valid(proposal->config, &why)) << why;
    history.push_back(evaluate(strategy.space(), *proposal, static_cast<std::int64_t>(history.size()), noise));
  }
  return history;
}

StrategyOptions options_for(std::int64_t trials, bool importance = false) {
  StrategyOptions options;
  options.trials = trials;
  options.importance = importance;
  return options;
}

TEST(Strategy, FindsANearlyBestConfigurationWithFewFailures) {
  const Strategy strategy(training_space(), options_for(30));
  const std::vector<Trial> history = run(strategy);
  EXPECT_EQ(history.size(), 30u);
  const std::optional<Config> winner = strategy.winner(history);
  ASSERT_TRUE(winner);
  Proposal proposal;
  proposal.config = *winner;
  const double found = evaluate(strategy.space(), proposal, 0, 0).throughput;
  // The best: micro 4 without recomputation (733), or micro 16 with (733 x 1.33 x 0.75); workers 4, tree.
  EXPECT_GT(found, 0.97 * 1000 * 4 / 6 * 1.1);
  EXPECT_LE(std::count_if(history.begin(), history.end(), [](const Trial& t) { return !measured(t); }), 8);
}

TEST(Strategy, IsAPureFunctionOfTheHistory) {
  const Strategy one(training_space(), options_for(20, true));
  const std::vector<Trial> history = run(one);
  const Strategy other(training_space(), options_for(20, true));
  for (std::size_t n = 0; n < history.size(); n += 3) {
    const std::optional<Proposal> proposal = other.next(std::span(history).first(n));
    ASSERT_TRUE(proposal);
    EXPECT_EQ(proposal->config, history[n].config) << n;
    EXPECT_EQ(proposal->purpose, history[n].purpose) << n;
  }
}

TEST(Strategy, StartsWithTheDefaultAndEndsWithFreshLaunchesOfTheWinner) {
  const Strategy strategy(training_space(), options_for(40, true));
  const std::vector<Trial> history = run(strategy);
  EXPECT_EQ(history.front().purpose, Purpose::kBaseline);
  EXPECT_EQ(history.front().config, strategy.space().default_config());
  const std::optional<Config> winner = strategy.winner(history);
  std::set<Purpose> purposes;
  for (const Trial& trial : history) {
    purposes.insert(trial.purpose);
    if (trial.purpose == Purpose::kConfirm) {
      EXPECT_EQ(trial.config, *winner);
    }
  }
  EXPECT_TRUE(purposes.contains(Purpose::kConfirm));
  EXPECT_TRUE(purposes.contains(Purpose::kControl));
}

std::string without_defaults(const Space& space) {
  return std::regex_replace(space.to_yaml(), std::regex(", default: [^,}]*"), "");
}

// A first value that nobody runs says nothing about how much faster the winner is than today's setting.
TEST(Strategy, WithoutADefaultThereIsNoBaseline) {
  const Space space = Space::parse(without_defaults(training_space()), "strategy_test");
  ASSERT_FALSE(space.has_default());
  const Strategy strategy(space, options_for(30, true));
  const std::vector<Trial> history = run(strategy);
  const auto made = [&](Purpose purpose) {
    return std::count_if(history.begin(), history.end(), [&](const Trial& t) { return t.purpose == purpose; });
  };
  EXPECT_EQ(made(Purpose::kBaseline), 0);
  EXPECT_EQ(made(Purpose::kControl), 0);
  EXPECT_EQ(made(Purpose::kSetBack), 0);
  EXPECT_GE(made(Purpose::kExplore) + made(Purpose::kReplicate), 26);
  const Conclusion conclusion = conclude(strategy, history);
  EXPECT_FALSE(conclusion.gain);
  ASSERT_TRUE(conclusion.median);
  EXPECT_GT(conclusion.best->throughput.value, conclusion.median->value);
}

TEST(Strategy, OfThirtyTrialsAtLeastTwentyThreeSearch) {
  const Strategy strategy(training_space(), options_for(30, true));
  const std::vector<Trial> history = run(strategy);
  const auto searching = std::count_if(history.begin(), history.end(),
                                       [](const Trial& trial) { return trial.purpose <= Purpose::kReplicate; });
  EXPECT_GE(searching, 23);
}

// The whole range of the micro-batch before its neighbours.
TEST(Strategy, LooksFarBeforeItLooksNear) {
  const Strategy strategy(training_space(), options_for(30));
  const std::vector<Trial> history = run(strategy);
  std::set<std::int64_t> seen;
  for (const Trial& trial : std::span(history).first(8)) seen.insert(std::get<std::int64_t>(trial.config.values[0]));
  EXPECT_GE(*seen.rbegin(), 16);
}

TEST(Strategy, KnobsWithoutEffectStayAtTheirDefault) {
  const Strategy strategy(training_space(), options_for(30, true));
  std::vector<Trial> history;
  while (const std::optional<Proposal> proposal = strategy.next(history)) {
    Trial trial;
    trial.number = static_cast<std::int64_t>(history.size());
    trial.config = proposal->config;
    trial.purpose = proposal->purpose;
    trial.seconds = trial.gpu_seconds = 10;
    trial.throughput = 1000;  // whatever is set
    trial.samples = {1000.0};
    history.push_back(trial);
  }
  EXPECT_EQ(strategy.winner(history), strategy.space().default_config());
}

TEST(Strategy, FreshLaunchesDoNotChangeTheWinner) {
  const Strategy strategy(training_space(), options_for(40, true));
  std::vector<Trial> history = run(strategy);
  const std::optional<Config> before = strategy.winner(history);
  for (Trial& trial : history)
    if (trial.purpose == Purpose::kConfirm) trial.throughput *= 0.5;
  EXPECT_EQ(strategy.winner(history), before);
}

TEST(Strategy, GoesOnWhenTheDefaultDoesNotRun) {
  const Strategy strategy(training_space(), options_for(12));
  std::vector<Trial> history;
  while (const std::optional<Proposal> proposal = strategy.next(history)) {
    Trial trial = evaluate(strategy.space(), *proposal, static_cast<std::int64_t>(history.size()), 0.03);
    if (proposal->config == strategy.space().default_config()) trial.outcome = Outcome::kCrash;
    history.push_back(trial);
  }
  EXPECT_TRUE(strategy.winner(history));
}

TEST(Strategy, StopsBeforeTheBudgetIsOverspent) {
  StrategyOptions options = options_for(1000);
  options.gpu_seconds = 200;  // twenty trials of ten seconds
  const Strategy strategy(training_space(), options);
  const std::vector<Trial> history = run(strategy);
  EXPECT_GE(history.size(), 18u);
  EXPECT_LE(history.size(), 21u);
}

TEST(Strategy, ParallelProposalsDiffer) {
  const Strategy strategy(training_space(), options_for(30));
  std::vector<Trial> history, pending;
  history.push_back(evaluate(strategy.space(), *strategy.next(history), 0, 0.03));
  for (int lane = 0; lane < 3; ++lane) {
    const std::optional<Proposal> proposal = strategy.next(history, pending);
    ASSERT_TRUE(proposal);
    for (const Trial& other : pending) EXPECT_NE(proposal->config, other.config);
    Trial trial;
    trial.config = proposal->config;
    trial.purpose = proposal->purpose;
    pending.push_back(trial);
  }
}

TEST(MemorySketch, OneFailureWarnsOfEverythingLarger) {
  const Space space = training_space();
  const auto with = [&](std::int64_t micro, const char* recompute) {
    Config config = space.default_config();
    config.values[0] = micro;
    config.values[2] = std::string(recompute);
    return config;
  };
  const std::vector<MemorySketch::Point> points{{space.default_config(), true}, {with(8, "none"), false}};
  const MemorySketch sketch(space, points);
  EXPECT_LT(sketch.fits(with(16, "none")), 0.1);
  EXPECT_LT(sketch.fits(with(32, "none")), 0.1);
  EXPECT_GT(sketch.fits(with(1, "none")), sketch.fits(with(4, "none")));
  EXPECT_GT(sketch.fits(with(8, "full")), sketch.fits(with(8, "none")) + 0.3);
  EXPECT_GT(sketch.fits(space.default_config()), 0.9);
}

TEST(Feasibility, ACombinationThatWasRefusedIsNotOfferedAgain) {
  const Space space = training_space();
  Config refused = space.default_config();
  refused.values[3] = std::string("tree");
  const std::vector<FeasibilityPoint> points{
      {space.default_config(), space.coordinates(space.default_config()), Outcome::kMeasured, "", 1},
      {refused, space.coordinates(refused), Outcome::kInvalid, "", 1}};
  const Feasibility model = Feasibility::fit(space, points, false);
  EXPECT_LT(model.probability(refused, space.coordinates(refused)), 0.4);
  EXPECT_GT(model.probability(space.default_config(), space.coordinates(space.default_config())), 0.8);
}

}  // namespace
}  // namespace lockstep::tune
