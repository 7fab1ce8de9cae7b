#include "lockstep/tune/study/store_journal.h"
#include "lockstep/telemetry/run_store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/telemetry/recorder.h"
#include "tests/tune/stored_study_fixture.h"

namespace lockstep::tune {
namespace {

using telemetry::RunStatus;

void expect_same(const Trial& a, const Trial& b, const Space& space) {
  EXPECT_EQ(to_json(a, space), to_json(b, space));
  EXPECT_EQ(a.config, b.config);
}

class StoreJournalTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && !telemetry::has_sqlite()) GTEST_SKIP() << "no SQLite in this build";
  }
  std::shared_ptr<telemetry::StudyStore> open() const {
    if (GetParam()) return telemetry::make_sqlite_study_store(folder_.path() / "runs.db");
    return telemetry::make_json_lines_study_store(folder_.path() / "studies");
  }
  Space space_ = Space::parse(kSmallSpace, "small.yaml");
  TemporaryFolder folder_;
};

TEST_P(StoreJournalTest, a_study_reads_back_as_it_was_told) {
  const StudySetup setup = small_setup();
  const OpenStudy made = create_study(open(), space_, setup);
  const StoredStudy read = load_study(*open(), made.study.id());
  EXPECT_EQ(read.setup.name, setup.name);
  EXPECT_EQ(to_json(read.setup), to_json(setup));
  EXPECT_EQ(read.setup.strategy.seed, setup.strategy.seed);
  EXPECT_FALSE(read.setup.strategy.importance);
  EXPECT_EQ(read.setup.versions, setup.versions);
  EXPECT_EQ(read.space.to_yaml(), space_.to_yaml());
  EXPECT_EQ(read.space.default_config(), space_.default_config());
  EXPECT_EQ(read.row.status, RunStatus::kRunning);
  EXPECT_TRUE(read.trials.empty());
}

TEST_P(StoreJournalTest, every_trial_reads_back_exactly) {
  OpenStudy study = create_study(open(), space_, small_setup());
  const std::vector<Trial> trials = small_trials(space_);
  journal_all(*study.journal, trials);
  study.journal->conclude({{"best", 1}});
  const StoredStudy read = load_study(*open(), "last");
  ASSERT_EQ(read.trials.size(), trials.size());
  for (std::size_t i = 0; i < trials.size(); ++i) expect_same(read.trials[i], trials[i], space_);
  EXPECT_EQ(read.row.status, RunStatus::kDone);
  EXPECT_EQ(read.row.conclusion, (nlohmann::json{{"best", 1}}));
  EXPECT_EQ(read.row.failed, 1);
  EXPECT_DOUBLE_EQ(read.row.gpu_seconds, 350);
}

TEST_P(StoreJournalTest, a_study_that_is_dropped_can_be_resumed_with_more_trials) {
  std::string id;
  {
    OpenStudy study = create_study(open(), space_, small_setup());
    id = study.study.id();
    journal_all(*study.journal, small_trials(space_));
    Trial running = measured_trial(7, space_.default_config(), 1);
    study.journal->begin(running);
    running.gpu_seconds = 6;
    study.journal->alive(running, 1.5);
  }
  EXPECT_EQ(load_study(*open(), id).row.status, RunStatus::kInterrupted);
  EXPECT_EQ(load_study(*open(), id).interrupted, 1);
  const auto store = open();
  OpenStudy again = resume_study(store, id);
  EXPECT_EQ(again.study.row.status, RunStatus::kRunning);
  EXPECT_EQ(again.journal->trials().size(), 7u);
  EXPECT_DOUBLE_EQ(again.journal->interrupted_gpu_seconds(), 6);
  EXPECT_DOUBLE_EQ(again.study.interrupted_gpu_seconds, 6);
  again.study.setup.strategy.trials = 99;
  save_setup(*store, id, again.study.setup);
  EXPECT_THROW(resume_study(open(), id), UserError);
  again.journal.reset();
  EXPECT_EQ(resume_study(open(), id).study.setup.strategy.trials, 99);
}

TEST_P(StoreJournalTest, a_trial_that_did_not_end_shows_no_result) {
  OpenStudy study = create_study(open(), space_, small_setup());
  study.journal->begin(measured_trial(0, space_.default_config(), 1));
  const auto attempts = open()->attempts(study.study.id());
  EXPECT_EQ(attempts.at(0).outcome, "");
  EXPECT_FALSE(attempts.at(0).document.contains("throughput"));
  EXPECT_EQ(attempts.at(0).document["config"], space_.to_json(space_.default_config()));
  EXPECT_TRUE(study.journal->trials().empty());
}

TEST_P(StoreJournalTest, says_which_study_is_missing_or_does_not_read_back) {
  try {
    load_study(*open(), "nobody");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_NE(std::string(error.what()).find("nobody"), std::string::npos);
  }
  const std::string id = open()->create({.id = "odd", .name = "n", .space_yaml = kSmallSpace});
  EXPECT_THROW(load_study(*open(), id), UserError);  // no options
}

// Noise keyed by trial, as a real study's would not be: so that two histories can be compared.
class Synthetic : public Evaluator {
 public:
  explicit Synthetic(const Space& space, std::int64_t kill_at) : space_(space), kill_at_(kill_at) {}
  Measurement evaluate(const EvaluationRequest& request) override {
    if (request.trial == kill_at_) ::kill(::getpid(), SIGKILL);
    Measurement result;
    const std::vector<double> at = space_.coordinates(request.config);
    if (at[*space_.find("micro")] > 0.9) {
      result.outcome = Outcome::kOutOfMemory;
    } else {
      double log = at[0] * 0.2;
      for (const double x : at) log -= std::isnan(x) ? 0.0 : 0.2 * (x - 0.6) * (x - 0.6);
      const double noise = 0.02 * std::sin(12.9898 * double(request.trial + 1));
      result.samples = {100 * std::exp(log + noise)};
    }
    result.seconds = 5;
    return result;
  }
  double devices(const Config&) const override { return 2; }

 private:
  const Space& space_;
  std::int64_t kill_at_;
};

std::vector<Trial> run_to_the_end(const OpenStudy& study, std::int64_t kill_at) {
  const Strategy strategy(study.study.space, study.study.setup.strategy);
  std::vector<std::unique_ptr<Evaluator>> lanes;
  lanes.push_back(std::make_unique<Synthetic>(study.study.space, kill_at));
  return run_study(strategy, lanes, *study.journal).trials;
}

TEST_P(StoreJournalTest, a_study_killed_at_any_trial_ends_as_the_undisturbed_one) {
  StudySetup setup = small_setup();
  setup.strategy.trials = 14;
  setup.strategy.gpu_seconds = 0;
  const std::vector<Trial> undisturbed = run_to_the_end(create_study(open(), space_, setup), -1);
  ASSERT_EQ(undisturbed.size(), 14u);

  const std::string id = [&] { return create_study(open(), space_, setup).study.id(); }();
  for (const std::int64_t kill_at : {0, 1, 6, 13}) {
    const pid_t child = ::fork();
    if (child == 0) {
      run_to_the_end(resume_study(open(), id), kill_at);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(load_study(*open(), id).row.status, RunStatus::kLost);
    EXPECT_EQ(load_study(*open(), id).trials.size(), std::size_t(kill_at));
  }
  const std::vector<Trial> resumed = run_to_the_end(resume_study(open(), id), -1);
  ASSERT_EQ(resumed.size(), undisturbed.size());
  for (std::size_t i = 0; i < resumed.size(); ++i) {
    EXPECT_EQ(resumed[i].config, undisturbed[i].config) << "trial " << i;
    EXPECT_EQ(resumed[i].purpose, undisturbed[i].purpose) << "trial " << i;
    EXPECT_EQ(resumed[i].samples, undisturbed[i].samples) << "trial " << i;
  }
  EXPECT_EQ(load_study(*open(), id).interrupted, 4);
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreJournalTest, ::testing::Bool(),
                         [](const auto& each) { return each.param ? "sqlite" : "json_lines"; });

}  // namespace
}  // namespace lockstep::tune
