#include "lockstep/tune/importance/importance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "lockstep/tune/study/evidence.h"

namespace lockstep::tune {
namespace {

// Draws of independent normal costs.
Draws draws_of(const std::vector<double>& means, double deviation, std::size_t count = 4000) {
  Random random(3);
  std::normal_distribution<double> normal;
  Draws draws{means.size(), {}};
  for (std::size_t i = 0; i < count; ++i)
    for (const double mean : means) draws.values.push_back(mean + deviation * normal(random));
  return draws;
}

TEST(TopKnobs, are_the_three_dearest_where_they_are_clear) {
  const TopKnobs top = choose_top(draws_of({1, 20, 3, 9, 30}, 0.5));
  EXPECT_EQ(top.top, (std::vector<std::size_t>{4, 1, 3}));
  EXPECT_TRUE(top.tied.empty());
  EXPECT_GT(top.probability, 0.99);
}

TEST(TopKnobs, are_tied_where_the_third_place_cannot_be_told_and_it_hardly_matters) {
  const TopKnobs top = choose_top(draws_of({30, 20, 5.0, 5.1, 0}, 0.15));
  EXPECT_EQ(top.top, (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(top.tied, (std::vector<std::size_t>{3, 2}));
  EXPECT_GT(top.probability, 0.99);
}

TEST(TopKnobs, are_not_tied_when_they_may_well_differ_by_more_than_a_point) {
  const TopKnobs top = choose_top(draws_of({30, 20, 5, 6, 0}, 3));
  EXPECT_EQ(top.top, (std::vector<std::size_t>{0, 1, 3}));
  EXPECT_TRUE(top.tied.empty());
  EXPECT_LT(top.probability, 0.8);
}

TEST(TopKnobs, tie_three_when_two_of_them_belong) {
  const TopKnobs top = choose_top(draws_of({30, 5.0, 5.1, 5.05, 0}, 0.15));
  EXPECT_EQ(top.top, (std::vector<std::size_t>{0}));
  EXPECT_EQ(top.tied.size(), 3u);
}

TEST(TopKnobs, of_two_are_two) {
  const TopKnobs top = choose_top(draws_of({3, 10}, 0.5));
  EXPECT_EQ(top.top, (std::vector<std::size_t>{1, 0}));
}

TEST(TopKnobs, set_backs_that_are_one_configuration_are_tied) {
  Draws draws = draws_of({30, 20, 5, 5, 0}, 0.8);
  for (std::size_t i = 0; i < draws.count(); ++i) draws.values[i * 5 + 3] = draws.values[i * 5 + 2];
  const TopKnobs top = choose_top(draws);
  EXPECT_EQ(top.tied, (std::vector<std::size_t>{2, 3}));
}

// A winner and four set-backs: a model with errors of its own, a few fresh launches.
struct Simulated {
  std::vector<double> truth;
  Surrogate::Joint model;
  std::vector<std::vector<double>> launches;
};

Simulated simulate(Random& random, double model_error, double claimed_error) {
  std::normal_distribution<double> normal;
  Simulated s{{}, {std::vector<double>(5), Matrix(5)}, std::vector<std::vector<double>>(5)};
  for (std::size_t i = 0; i < 5; ++i) {
    s.truth.push_back(i == 0 ? 0 : -0.05 * static_cast<double>(i));
    s.model.mean[i] = s.truth[i] + model_error * normal(random);
    s.model.covariance(i, i) = claimed_error * claimed_error;
    for (int n = 0; n < (i == 0 ? 4 : 2); ++n) s.launches[i].push_back(s.truth[i] + 0.03 * normal(random));
  }
  return s;
}

struct Quality {
  double coverage = 0, error = 0, width = 0;
};

Quality quality(double model_error, double claimed_error, bool use_model) {
  Random random(11);
  std::normal_distribution<double> normal;
  Quality result;
  constexpr int kRuns = 300;
  for (int run = 0; run < kRuns; ++run) {
    const Simulated s = simulate(random, model_error, claimed_error);
    std::vector<std::vector<double>> rows = {{}, {}, {}};
    for (auto& row : rows)
      for (int n = 0; n < 4; ++n) row.push_back(std::exp(0.03 * normal(random)));
    const Draws logs = posterior_draws(use_model ? &s.model : nullptr, s.launches, pooled_log_spread(rows), 1000, 5);
    Draws costs{4, {}};
    for (std::size_t d = 0; d < logs.count(); ++d)
      for (std::size_t i = 1; i < 5; ++i) costs.values.push_back(logs[d][0] - logs[d][i]);
    for (std::size_t i = 0; i < 4; ++i) {
      const Estimate estimate = costs.estimate(i);
      const double truth = s.truth[0] - s.truth[i + 1];
      result.coverage += (estimate.low <= truth && truth <= estimate.high) / (4.0 * kRuns);
      result.error += std::pow(estimate.value - truth, 2) / (4.0 * kRuns);
      result.width += (estimate.high - estimate.low) / (4.0 * kRuns);
    }
  }
  result.error = std::sqrt(result.error);
  return result;
}

TEST(SetBackCosts, from_launches_alone_cover) { EXPECT_NEAR(quality(0, 0, false).coverage, 0.95, 0.025); }

TEST(SetBackCosts, gain_from_a_model_that_is_right) {
  const Quality with = quality(0.015, 0.015, true), without = quality(0.015, 0.015, false);
  EXPECT_GT(with.coverage, 0.92);
  EXPECT_LT(with.error, 0.85 * without.error);
  EXPECT_LT(with.width, 0.95 * without.width);
}

TEST(SetBackCosts, are_not_fooled_by_a_model_that_claims_to_know_more_than_it_does) {
  EXPECT_GT(quality(0.05, 0.003, true).coverage, 0.89);
}

TEST(LaunchSpread, leaves_out_what_the_search_chose_because_it_was_fast) {
  std::vector<Trial> history(4);
  const double values[] = {130, 100, 102, 101};
  for (std::size_t i = 0; i < 4; ++i) {
    history[i].throughput = values[i];
    history[i].purpose = i == 0 ? Purpose::kExplore : i == 1 ? Purpose::kReplicate : Purpose::kConfirm;
  }
  const PooledSpread spread = launch_spread(history);
  EXPECT_EQ(spread.degrees_of_freedom, 2);
  EXPECT_LT(spread.variance, 2e-4);
}

// Four knobs of which `big` and `small` matter, one does nothing, and one only together with `big`.
Space small_space() {
  return Space::parse(R"(
knobs:
  big: {choices: [1, 2, 4, 8], default: 1}
  small: {int: [0, 4], default: 0}
  idle: {choices: [a, b, c]}
  partner: {choices: [x, y]}
)",
                      "small.yaml");
}

double log_speed(const Config& config) {
  const double big = std::log2(static_cast<double>(std::get<std::int64_t>(config.values[0])));
  const auto small = static_cast<double>(std::get<std::int64_t>(config.values[1]));
  const bool partner = std::get<std::string>(config.values[3]) == "y";
  return 0.2 * big + 0.03 * small + (partner ? 0.06 * (big - 1.5) : 0.0);
}

Trial launch(const Config& config, Purpose purpose, Random& random, std::int64_t number) {
  std::normal_distribution<double> normal;
  Trial trial;
  trial.number = number;
  trial.config = config;
  trial.purpose = purpose;
  trial.throughput = 1000 * std::exp(log_speed(config) + 0.02 * normal(random));
  return trial;
}

std::vector<Trial> searched(const Space& space, std::uint64_t seed, std::size_t count = 40) {
  Random random(seed);
  std::vector<Trial> history{launch(space.default_config(), Purpose::kBaseline, random, 0)};
  while (history.size() < count)
    history.push_back(
        launch(space.sample(random), Purpose::kExplore, random, static_cast<std::int64_t>(history.size())));
  return history;
}

Config config_of(const Space& space, const char* json) { return space.from_json(nlohmann::json::parse(json), "test"); }

TEST(SetBacks, are_those_of_knobs_away_from_their_default) {
  const Space space = small_space();
  const Config winner = config_of(space, R"({"big": 8, "small": 4, "idle": "a", "partner": "y"})");
  const std::vector<SetBack> list = set_backs(space, winner, {});
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(space.knobs()[list[0].knob].name, "big");
  EXPECT_EQ(space.knobs()[list[2].knob].name, "partner");
}

TEST(SetBacks, that_never_ran_fail_and_cost_everything) {
  const Space space = small_space();
  const Config winner = config_of(space, R"({"big": 8, "small": 4, "idle": "a", "partner": "y"})");
  std::vector<Trial> history = searched(space, 1);
  Random random(2);
  for (int i = 0; i < 3; ++i) history.push_back(launch(winner, Purpose::kConfirm, random, 50 + i));
  Trial failed;
  failed.config = set_backs(space, winner, {})[1].config;
  failed.purpose = Purpose::kSetBack;
  failed.outcome = Outcome::kOutOfMemory;
  std::erase_if(history, [&](const Trial& trial) { return trial.config == failed.config; });
  history.push_back(failed);
  const Evidence evidence(space, nullptr, history);
  const SetBackCosts costs = set_back_costs(evidence.beliefs(), winner, history, 500);
  EXPECT_TRUE(costs.set_backs[1].fails);
  EXPECT_EQ(costs.percent.estimate(1).value, 100);
  EXPECT_FALSE(costs.set_backs[0].fails);
}

TEST(NextSetBack, launches_those_whose_place_is_open_until_the_answer_stands) {
  const Space space = small_space();
  const Config winner = config_of(space, R"({"big": 8, "small": 4, "idle": "b", "partner": "y"})");
  std::vector<Trial> history = searched(space, 4);
  Random random(5);
  for (int i = 0; i < 3; ++i) history.push_back(launch(winner, Purpose::kConfirm, random, 50 + i));
  const Evidence evidence(space, nullptr, history);
  std::vector<int> launches(space.size(), 0);
  int asked = 0;
  for (; asked < 12; ++asked) {
    const std::optional<SetBack> next = next_set_back(evidence.beliefs(), winner, history, {});
    if (!next) break;
    ++launches[next->knob];
    history.push_back(launch(next->config, Purpose::kSetBack, random, 60 + asked));
  }
  EXPECT_LT(asked, 12);
  EXPECT_LE(launches[0], 1);  // that `big` is first was clear at once
}

TEST(SetBacks, of_knobs_that_a_constraint_ties_together_are_one) {
  const Space space = Space::parse(
      "knobs:\n"
      "  micro: {choices: [1, 2, 4, 8], default: 2}\n"
      "  accumulation: {choices: [1, 2, 4, 8], default: 4}\n"
      "constraints: [\"micro * accumulation == 8\"]\n",
      "importance_test");
  const std::vector<SetBack> list = set_backs(space, config_of(space, R"({"micro": 8, "accumulation": 1})"), {});
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list.front().moved_along, std::vector<std::string>{"accumulation"});
}

TEST(VarianceShares, name_what_explains_the_space) {
  const Space space = small_space();
  const std::vector<Trial> history = searched(space, 9, 60);
  const Evidence evidence(space, nullptr, history);
  const VarianceShares shares = variance_shares(evidence.beliefs(), history, 1);
  // By hand, over the 120 configurations: big (0.2 + 0.06 / 2)^2 x 1.25 = 0.0661, small 0.0009 x 2 = 0.0018, partner
  // alone nothing, big with partner 0.06^2 / 4 x 1.25 = 0.0011: of 0.0690 these are 95.8, 2.6, 0 and 1.6 percent.
  EXPECT_NEAR(shares.main[0].value, 95.8, 4);
  EXPECT_NEAR(shares.main[1].value, 2.6, 2);
  EXPECT_LT(shares.main[2].value, 1.5);
  for (std::size_t knob = 0; knob < 4; ++knob) {
    EXPECT_LE(shares.main[knob].low, shares.main[knob].value);
    EXPECT_LE(shares.main[knob].value, shares.main[knob].high);
    EXPECT_GE(shares.total[knob].value, shares.main[knob].value);
  }
  EXPECT_GE(shares.total[3].high, 1.6);
}

TEST(VarianceShares, are_the_same_for_the_same_trials) {
  const Space space = small_space();
  const std::vector<Trial> history = searched(space, 9, 30);
  const Evidence evidence(space, nullptr, history);
  EXPECT_EQ(variance_shares(evidence.beliefs(), history, 1).total[0].high,
            variance_shares(evidence.beliefs(), history, 1).total[0].high);
}

}  // namespace
}  // namespace lockstep::tune
