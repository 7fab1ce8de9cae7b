// Earlier studies as evidence: read from every source, placed in a space, believed as far as they are right.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "lockstep/base/file.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"
#include "lockstep/telemetry/sqlite.h"
#include "lockstep/tune/study/export_csv.h"
#include "lockstep/tune/study/export_optuna.h"
#include "lockstep/tune/transfer/earlier.h"
#include "lockstep/tune/transfer/prior.h"
#include "tests/base/expect_user_error.h"
#include "tests/tune/stored_study_fixture.h"

namespace lockstep::tune {
namespace {

using testing::user_error;

StoredStudy small_study(const TemporaryFolder& folder) {
  const std::shared_ptr<telemetry::StudyStore> store =
      telemetry::make_json_lines_study_store(folder.path() / "studies");
  const Space space = Space::parse(kSmallSpace, "small.yaml");
  OpenStudy study = create_study(store, space, small_setup());
  std::vector<Trial> trials = small_trials(space);
  trials[5].stopped_early = true;
  journal_all(*study.journal, trials);
  study.journal->conclude(nullptr);
  return load_study(*store, study.study.id());
}

// What small_study() says, wherever it was read from: ratios to the median of six that ran.
void expect_small_study(const Space& space, const EarlierStudy& earlier, double stopped = 101) {
  ASSERT_EQ(earlier.trials.size(), 7u);
  const std::vector<Trial> placed = place_trials(space, earlier);
  const std::vector<Trial> wanted = small_trials(space);
  ASSERT_EQ(placed.size(), 7u);
  for (std::size_t i = 0; i < placed.size(); ++i) {
    EXPECT_EQ(placed[i].config, wanted[i].config) << i;
    EXPECT_EQ(placed[i].outcome, wanted[i].outcome) << i;
    const double throughput = i == 5 ? stopped : wanted[i].throughput;
    EXPECT_NEAR(placed[i].throughput * wanted[0].throughput, placed[0].throughput * throughput, 1e-6) << i;
  }
}

TEST(Earlier, OurStudyReadsBackFromTheStoreFromCsvAndFromOptunasStorage) {
  const TemporaryFolder folder;
  const StoredStudy study = small_study(folder);
  expect_small_study(study.space, earlier_of(study));
  const auto csv = folder.path() / "trials.csv";
  write_file_atomically(csv, to_csv(study));
  expect_small_study(study.space, *read_earlier_file(csv.string()));
  if (!telemetry::has_sqlite()) return;
  const auto storage = folder.path() / "trials.db";
  export_optuna(study, storage, "small");
  // Stopped early is pruned there: its last sample stands for it.
  expect_small_study(study.space, *read_earlier_file(storage.string()), 101 * 1.01);
  expect_small_study(study.space, *read_earlier_file(storage.string() + "#small"), 101 * 1.01);
  EXPECT_NE(user_error([&] { read_optuna_storage(storage, "smal"); }).find("no study `smal`"), std::string::npos);
}

TEST(Earlier, WhatOptunaMinimizesIsTurnedRoundAndWhatItDidNotEndIsLeftOut) {
  if (!telemetry::has_sqlite()) GTEST_SKIP() << "no SQLite in this build";
  const TemporaryFolder folder;
  const StoredStudy study = small_study(folder);
  const auto storage = folder.path() / "trials.db";
  export_optuna(study, storage);
  {
    telemetry::Database database(storage, false, 1.0);
    database.execute("UPDATE study_directions SET direction = 'MINIMIZE'");
    database.execute("UPDATE trials SET state = 'RUNNING' WHERE number = 6");
    database.execute("UPDATE trial_values SET value = -1 WHERE trial_id = 1");
  }
  const EarlierStudy earlier = read_optuna_storage(storage);
  ASSERT_EQ(earlier.trials.size(), 6u);
  EXPECT_EQ(earlier.trials[0].outcome, Outcome::kCrash) << "a value below zero is no throughput";
  EXPECT_EQ(earlier.trials[2].outcome, Outcome::kOutOfMemory);
  EXPECT_NEAR(earlier.trials[1].throughput * 130, 1, 1e-9);
}

TEST(Earlier, DataFramesAndListsOfTrialsAreRead) {
  const TemporaryFolder folder;
  const Space space = Space::parse(kSmallSpace, "small.yaml");
  const auto csv = folder.path() / "frame.csv", list = folder.path() / "list.json";
  std::ofstream(csv) << "number,value,params_micro,params_workers,params_algo,state\n"
                        "0,100.5,4,2,Tree,COMPLETE\n1,,8,2,Tree,FAIL\n2,90,4,1,Ring,RUNNING\n";
  std::ofstream(list)
      << R"([{"params": {"micro": 4, "workers": 2, "algo": "tree"}, "value": 100.5, "state": "COMPLETE"},
                             {"params": {"micro": 8, "unknown": 3}, "value": null, "state": "TrialState.FAIL"}])";
  for (const auto& file : {csv, list}) {
    const std::vector<Trial> placed = place_trials(space, read_trial_table(file));
    ASSERT_EQ(placed.size(), 2u) << file;
    EXPECT_EQ(space.to_json(placed[0].config)["micro"], 4);
    EXPECT_EQ(space.to_json(placed[0].config)["algo"], "Tree");
    EXPECT_EQ(space.to_json(placed[0].config)["bucket"], 16) << "a knob it did not know is at its default";
    EXPECT_EQ(placed[1].outcome, Outcome::kCrash);
  }
  EXPECT_FALSE(read_earlier_file("20261115-101500-a1b2c3-job")) << "an id of ours";
}

TEST(Earlier, NumbersFindTheNearestLevelAndStrangersAreLeftOut) {
  const Space space = Space::parse(kSmallSpace, "small.yaml");
  EarlierStudy earlier;
  for (const nlohmann::json& config : {nlohmann::json{{"bucket", 16.4}}, nlohmann::json{{"bucket", 100000}},
                                       nlohmann::json{{"algo", "Star"}}, nlohmann::json{{"micro", 8}, {"workers", 8}}})
    earlier.trials.push_back({config, Outcome::kMeasured, 10, ""});
  const std::vector<Trial> placed = place_trials(space, earlier);
  ASSERT_EQ(placed.size(), 1u) << "beyond the range, no such word, against the rule";
  EXPECT_EQ(space.to_json(placed[0].config)["bucket"], 16);
}

Space anonymous_space() {
  return Space::parse(
      "knobs:\n"
      "  k0: {choices: [1, 2, 4, 8, 16, 32, 64], default: 1}\n"
      "  k1: {int: [0, 12], default: 0}\n"
      "  k2: {choices: [a, b, c, d], default: a}\n"
      "  k3: {int: [0, 10], default: 0}\n",
      "transfer_test");
}

double true_log_speed(const Config& config) {
  const double k0 = std::log2(static_cast<double>(std::get<std::int64_t>(config.values[0])));
  const auto k1 = static_cast<double>(std::get<std::int64_t>(config.values[1]));
  const auto k3 = static_cast<double>(std::get<std::int64_t>(config.values[3]));
  const char k2 = std::get<std::string>(config.values[2])[0];
  return 5 - 0.05 * (k0 - 4) * (k0 - 4) - 0.01 * (k1 - 8) * (k1 - 8) - 0.012 * (k3 - 3) * (k3 - 3) - 0.1 * (k2 != 'c');
}

double noise_of(std::uint64_t seed) {
  Random random(seed);
  return 0.03 * std::normal_distribution<double>()(random);
}

// An earlier study of 40 random settings; `factor` -1 of one that says the opposite.
std::vector<Trial> earlier_trials(double factor) {
  const Space space = anonymous_space();
  Random random(3);
  EarlierStudy earlier;
  for (std::uint64_t i = 0; i < 40; ++i) {
    const Config config = space.sample(random);
    earlier.trials.push_back(
        {space.to_json(config), Outcome::kMeasured, std::exp(factor * true_log_speed(config) + noise_of(i)), ""});
  }
  return place_trials(space, earlier);
}

// Mean over three seeds of what the answer after so many trials loses, in the logarithm.
double mean_loss(const Prior* prior, std::int64_t trials) {
  const Space space = anonymous_space();
  double loss = 0;
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    StrategyOptions options;
    options.trials = trials;
    options.seed = seed;
    options.importance = false;
    options.prior = prior;
    const Strategy strategy(space, options);
    std::vector<Trial> history;
    while (const std::optional<Proposal> proposal = strategy.next(history)) {
      Trial trial;
      trial.number = static_cast<std::int64_t>(history.size());
      trial.config = proposal->config;
      trial.purpose = proposal->purpose;
      trial.seconds = trial.gpu_seconds = 10;
      trial.throughput = std::exp(true_log_speed(trial.config) + noise_of(1000 * seed + history.size()));
      trial.samples = {trial.throughput};
      history.push_back(std::move(trial));
    }
    loss += (5 - true_log_speed(*strategy.winner(history))) / 3;
  }
  return loss;
}

TEST(TransferPrior, AnEarlierStudyThatIsRightIsAHeadStart) {
  const auto prior = make_transfer_prior(anonymous_space(), earlier_trials(1), nullptr);
  const double with = mean_loss(prior.get(), 9), without = mean_loss(nullptr, 9);
  EXPECT_LT(with, 0.03);
  EXPECT_LT(with, without);
}

TEST(TransferPrior, AnEarlierStudyThatSaysTheOppositeIsUnlearned) {
  const auto prior = make_transfer_prior(anonymous_space(), earlier_trials(-1), nullptr);
  // Trusted for good it still loses 0.1 after as many trials.
  EXPECT_LT(mean_loss(prior.get(), 18), 0.06);
}

TEST(TransferPrior, NothingThatRanLeavesWhatWasBelieved) {
  const Space space = anonymous_space();
  std::vector<Trial> failed = earlier_trials(1);
  for (Trial& trial : failed) trial.outcome = Outcome::kCrash;
  EXPECT_EQ(make_transfer_prior(space, failed, nullptr), nullptr);
}

}  // namespace
}  // namespace lockstep::tune
