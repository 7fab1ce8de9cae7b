#include "lockstep/tune/study/conclusion.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "lockstep/tune/importance/importance.h"

namespace lockstep::tune {
namespace {

Space small_space() {
  return Space::parse(R"(
knobs:
  batch: {choices: [1, 2, 4], default: 1}
  workers: {int: [0, 3], default: 0}
  algo: {choices: [Ring, Tree], default: Ring}
)",
                      "small.yaml");
}

double truth_of(const Config& config) {
  const auto batch = static_cast<double>(std::get<std::int64_t>(config.values[0]));
  const auto workers = static_cast<double>(std::get<std::int64_t>(config.values[1]));
  return 100 * (1 + 0.2 * std::log2(batch)) * (1 + 0.05 * workers) *
         (std::get<std::string>(config.values[2]) == "Tree" ? 1.1 : 1.0);
}

// Trials as a study would make them, with noise between launches and drift between rounds.
class Story {
 public:
  Story(std::uint64_t seed, double noise, double drift = 0) : random_(seed), noise_(noise), drift_(drift) {}

  void launch(const Config& config, Purpose purpose, const std::string& knob = {}) {
    Trial trial;
    trial.number = static_cast<std::int64_t>(history.size());
    trial.config = config;
    trial.purpose = purpose;
    trial.set_back_knob = knob;
    trial.throughput = truth_of(config) * std::exp(noise_ * normal_(random_) + shift_ - noise_ * noise_ / 2);
    trial.gpu_seconds = 36;
    history.push_back(trial);
  }
  void fail(const Config& config, Outcome outcome) {
    launch(config, Purpose::kExplore);
    history.back().outcome = outcome;
    history.back().throughput = 0;
  }
  void search(const Space& space, int count) {
    launch(space.default_config(), Purpose::kBaseline);
    for (int i = 0; i < count; ++i) launch(space.sample(random_), Purpose::kExplore);
  }
  void verify(const Strategy& strategy, int rounds) {
    const Config winner = *strategy.winner(history);
    for (int round = 0; round < rounds; ++round) {
      shift_ = drift_ * normal_(random_);
      launch(winner, Purpose::kConfirm);
      launch(strategy.space().default_config(), Purpose::kControl);
      for (const SetBack& set_back : set_backs(strategy.space(), winner, {}))
        launch(set_back.config, Purpose::kSetBack, strategy.space().knobs()[set_back.knob].name);
    }
    shift_ = 0;
  }

  std::vector<Trial> history;

 private:
  Random random_;
  std::normal_distribution<double> normal_;
  double noise_, drift_, shift_ = 0;
};

TEST(Conclusion, of_nothing_has_no_best) {
  const Strategy strategy(small_space(), {});
  const Conclusion conclusion = conclude(strategy, {});
  EXPECT_FALSE(conclusion.best);
  EXPECT_TRUE(to_json(conclusion, strategy.space())["best"].is_null());
  Story story(1, 0.02);
  story.fail(strategy.space().default_config(), Outcome::kOutOfMemory);
  const Conclusion failed = conclude(strategy, story.history);
  EXPECT_FALSE(failed.best);
  EXPECT_EQ(failed.failed, 1);
  EXPECT_EQ(failed.failures_by_outcome[static_cast<int>(Outcome::kOutOfMemory)], 1);
}

TEST(Conclusion, before_fresh_launches_is_provisional_and_not_the_lucky_best) {
  const Strategy strategy(small_space(), {});
  int covered = 0;
  double bias = 0;
  constexpr int kRuns = 40;
  for (int run = 0; run < kRuns; ++run) {
    Story story(100 + run, 0.05);
    story.search(strategy.space(), 20);
    const Conclusion conclusion = conclude(strategy, story.history);
    ASSERT_TRUE(conclusion.best && conclusion.best->provisional);
    const double truth = truth_of(conclusion.best->config);
    covered += conclusion.best->throughput.low <= truth && truth <= conclusion.best->throughput.high;
    bias += (conclusion.best->throughput.value / truth - 1) / kRuns;
  }
  EXPECT_GE(covered, kRuns * 0.88);
  EXPECT_LT(std::abs(bias), 0.02);
}

TEST(Conclusion, reports_fresh_launches_alone_without_bias_and_with_intervals_that_cover) {
  const Strategy strategy(small_space(), {});
  int covered = 0, gains = 0;
  double bias = 0;
  constexpr int kRuns = 80;
  for (int run = 0; run < kRuns; ++run) {
    Story story(500 + run, 0.03);
    story.search(strategy.space(), 12);
    story.verify(strategy, 3);
    const Conclusion conclusion = conclude(strategy, story.history);
    ASSERT_TRUE(conclusion.best && conclusion.gain);
    const double truth = truth_of(conclusion.best->config);
    EXPECT_EQ(conclusion.best->throughput.launches, 3);
    covered += conclusion.best->throughput.low <= truth && truth <= conclusion.best->throughput.high;
    const double gain = 100 * (truth / 100 - 1);
    gains += conclusion.gain->percent.low <= gain && gain <= conclusion.gain->percent.high;
    bias += (conclusion.best->throughput.value / truth - 1) / kRuns;
  }
  EXPECT_NEAR(covered, kRuns * 0.95, kRuns * 0.055);
  EXPECT_NEAR(gains, kRuns * 0.95, kRuns * 0.055);
  EXPECT_LT(std::abs(bias), 0.005);  // the best observed would be 3 to 5% too high
}

TEST(Conclusion, figure_does_not_move_with_the_launches_of_the_search) {
  const Strategy strategy(small_space(), {});
  Story story(3, 0.02);
  story.search(strategy.space(), 15);
  story.verify(strategy, 3);
  const Conclusion before = conclude(strategy, story.history);
  for (Trial& trial : story.history)
    if (trial.purpose == Purpose::kExplore && trial.config == before.best->config) trial.throughput *= 1.05;
  EXPECT_EQ(conclude(strategy, story.history).best->throughput.value, before.best->throughput.value);
}

TEST(Conclusion, pairs_the_gain_over_rounds_so_that_drift_cancels) {
  const Strategy strategy(small_space(), {});
  double squares = 0;
  for (int run = 0; run < 20; ++run) {
    Story story(900 + run, 0.005, 0.10);
    story.search(strategy.space(), 20);
    story.verify(strategy, 3);
    const Conclusion conclusion = conclude(strategy, story.history);
    ASSERT_TRUE(conclusion.best && conclusion.gain);
    EXPECT_TRUE(conclusion.gain->paired);
    const double gain = 100 * (truth_of(conclusion.best->config) / 100 - 1);
    squares += std::pow(conclusion.gain->percent.value - gain, 2) / 20;
  }
  EXPECT_LT(std::sqrt(squares), 1.5);  // unpaired: 10% x sqrt(2 / 3) of about 160
}

TEST(Conclusion, ranks_set_backs_and_leaves_a_knob_at_its_default_at_zero) {
  const Strategy strategy(small_space(), {});
  Story story(7, 0.01);
  story.search(strategy.space(), 24);
  story.verify(strategy, 3);
  const Conclusion conclusion = conclude(strategy, story.history);
  ASSERT_EQ(conclusion.importance.size(), 3u);
  for (const KnobImportance& importance : conclusion.importance) ASSERT_TRUE(importance.set_back_percent);
  EXPECT_EQ(conclusion.importance[0].knob, "batch");
  // From 4 to 1: 1 - 1 / 1.4 = 28.6%.
  EXPECT_NEAR(conclusion.importance[0].set_back_percent->value, 28.6, 3);
  EXPECT_EQ(conclusion.top.front(), "batch");
  for (const KnobImportance& importance : conclusion.importance) {
    const std::size_t knob = *strategy.space().find(importance.knob);
    if (conclusion.best->config.values[knob] != conclusion.baseline.values[knob]) continue;
    EXPECT_EQ(importance.set_back_percent->value, 0);
    EXPECT_EQ(importance.set_back_percent->launches, 0);
  }
}

TEST(Conclusion, without_a_default_compares_with_the_median_of_what_was_tried) {
  // A knob whose default nobody gave: its first choice is no baseline.
  const Space space = Space::parse(R"(
knobs:
  batch: {choices: [1, 2, 4], default: 1}
  workers: {int: [0, 3], default: 0}
  algo: {choices: [Ring, Tree]}
)",
                                   "small.yaml");
  const Strategy strategy(space, {});
  Story story(9, 0.01);
  Random random(9);
  std::vector<double> tried;
  for (int i = 0; i < 21; ++i) {
    story.launch(space.sample(random), Purpose::kExplore);
    tried.push_back(story.history.back().throughput);
  }
  // What is no longer search, moves no median; what failed, neither.
  story.fail(space.default_config(), Outcome::kOutOfMemory);
  const Config winner = *strategy.winner(story.history);
  for (int i = 0; i < 3; ++i) story.launch(winner, Purpose::kConfirm);
  std::sort(tried.begin(), tried.end());

  const Conclusion conclusion = conclude(strategy, story.history);
  EXPECT_FALSE(conclusion.default_given);
  EXPECT_FALSE(conclusion.gain);
  EXPECT_FALSE(conclusion.baseline_throughput);
  ASSERT_TRUE(conclusion.best && conclusion.median);
  EXPECT_FALSE(conclusion.best->provisional);
  EXPECT_EQ(conclusion.median->value, tried[10]);
  EXPECT_EQ(conclusion.median->launches, 21);
  EXPECT_GT(conclusion.best->throughput.value, conclusion.median->value);
  // Nothing to revert to; the shares of the variance stay.
  EXPECT_EQ(conclusion.importance.size(), 3u);
  for (const KnobImportance& importance : conclusion.importance) EXPECT_FALSE(importance.set_back_percent);
  const nlohmann::json document = to_json(conclusion, space);
  EXPECT_EQ(document["default_given"], false);
  EXPECT_TRUE(document["baseline"].is_null());
  EXPECT_TRUE(document["gain_percent"].is_null());
  EXPECT_EQ(document["median"]["value"], tried[10]);
}

TEST(Conclusion, as_json_has_what_readers_rely_on) {
  const Strategy strategy(small_space(), {});
  Story story(8, 0.01);
  story.search(strategy.space(), 15);
  story.fail(strategy.space().default_config(), Outcome::kTimeout);
  story.verify(strategy, 2);
  const nlohmann::json document = to_json(conclude(strategy, story.history), strategy.space());
  EXPECT_EQ(document["schema"], "lockstep.study/1");
  EXPECT_EQ(document["default_given"], true);
  EXPECT_FALSE(document["baseline"].is_null());
  for (const char* key : {"config", "estimate", "low", "high", "launches", "provisional"})
    EXPECT_TRUE(document["best"].contains(key)) << key;
  for (const char* key : {"value", "low", "high", "launches", "paired"})
    EXPECT_TRUE(document["gain_percent"].contains(key)) << key;
  EXPECT_EQ(document["trials"], story.history.size());
  EXPECT_EQ(document["failed"], 1);
  EXPECT_EQ(document["failures"]["timeout"], 1);
  EXPECT_NEAR(document["gpu_hours"].get<double>(), 0.01 * static_cast<double>(story.history.size()), 1e-9);
  ASSERT_EQ(document["importance"].size(), 3u);
  for (const char* key :
       {"knob", "set_back_percent", "set_back_fails", "moved_along", "variance_main_percent", "variance_total_percent"})
    EXPECT_TRUE(document["importance"][0].contains(key)) << key;
  EXPECT_FALSE(document["top"].empty());
  EXPECT_TRUE(document.dump().find("null") == std::string::npos) << "no figure is infinite or missing here";
}

}  // namespace
}  // namespace lockstep::tune
