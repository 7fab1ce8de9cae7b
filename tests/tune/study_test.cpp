// The loop of a study: charges, bounds, resuming, lanes, stopping. Evaluators are made up; seconds are virtual.
#include "lockstep/tune/study/study.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <numeric>
#include <thread>

#include "lockstep/base/clock.h"
#include "tests/base/expect_user_error.h"

namespace lockstep::tune {
namespace {

using testing::user_error;

Space small_space() {
  return Space::parse(
      "knobs:\n"
      "  micro_batch: {choices: [1, 2, 4, 8, 16], default: 1}\n"
      "  num_workers: {int: [0, 4], default: 0}\n"
      "  recompute: {choices: [none, full], default: full}\n",
      "space.yaml");
}

// What all evaluators of a test share.
struct World {
  std::function<Measurement(const EvaluationRequest&)> measure;
  double devices = 1;
  bool adapts = true;
  std::mutex mutex;
  std::vector<EvaluationRequest> requests;
  int running = 0, most_running = 0;
};

class FakeEvaluator : public Evaluator {
 public:
  explicit FakeEvaluator(World& world) : world_(world) {}
  Measurement evaluate(const EvaluationRequest& request) override {
    {
      const std::lock_guard lock(world_.mutex);
      world_.requests.push_back(request);
      world_.most_running = std::max(world_.most_running, ++world_.running);
    }
    struct Leave {
      World& world;
      ~Leave() {
        const std::lock_guard lock(world.mutex);
        --world.running;
      }
    } leave{world_};
    return world_.measure(request);
  }
  double devices(const Config&) const override { return world_.devices; }
  bool adapts_to_budget() const override { return world_.adapts; }

 private:
  World& world_;
};

std::vector<std::unique_ptr<Evaluator>> lanes_of(World& world, int count = 1) {
  std::vector<std::unique_ptr<Evaluator>> lanes;
  for (int i = 0; i < count; ++i) lanes.push_back(std::make_unique<FakeEvaluator>(world));
  return lanes;
}

double speed_of(const Config& config) {
  const auto micro = static_cast<double>(std::get<std::int64_t>(config.values[0]));
  const auto workers = static_cast<double>(std::get<std::int64_t>(config.values[1]));
  return 1000 * micro / (micro + 2) * (1 - 0.3 * std::exp(-workers));
}

// Noise keyed by the trial's number; micro_batch 16 does not fit.
Measurement synthetic(const EvaluationRequest& request, double seconds) {
  Measurement measurement;
  measurement.seconds = seconds;
  if (std::get<std::int64_t>(request.config.values[0]) == 16) {
    measurement.outcome = Outcome::kOutOfMemory;
    return measurement;
  }
  Random random(static_cast<std::uint64_t>(request.trial) + 99);
  std::normal_distribution<double> noise(0, 0.02);
  const double launch = std::exp(noise(random));
  for (int i = 0; i < 8; ++i)
    measurement.samples.push_back(speed_of(request.config) * launch * std::exp(noise(random)));
  return measurement;
}

StrategyOptions options_of(std::int64_t trials, double gpu_seconds = 0) {
  StrategyOptions options;
  options.trials = trials;
  options.gpu_seconds = gpu_seconds;
  options.trial_seconds = 60;
  return options;
}

double charged(const std::vector<Trial>& trials) {
  return std::accumulate(trials.begin(), trials.end(), 0.0,
                         [](double sum, const Trial& trial) { return sum + trial.gpu_seconds; });
}

TEST(Study, ChargesWhatWasReportedOrTheWallTimesTheDevices) {
  World world;
  world.devices = 8;
  world.measure = [](const EvaluationRequest& request) {
    if (request.trial == 1) std::this_thread::sleep_for(std::chrono::milliseconds(80));
    return synthetic(request, request.trial == 1 ? 0.0 : 30.0);
  };
  const auto journal = make_memory_journal();
  const StudyResult result = run_study(Strategy(small_space(), options_of(4)), lanes_of(world), *journal);
  ASSERT_EQ(result.trials.size(), 4u);
  EXPECT_EQ(result.trials[0].gpu_seconds, 240);
  EXPECT_GE(result.trials[1].gpu_seconds, 8 * 0.08);
  EXPECT_FALSE(result.interrupted);
  EXPECT_EQ(result.conclusion.trials, 4);
  for (std::size_t i = 0; i < result.trials.size(); ++i) EXPECT_EQ(result.trials[i].number, static_cast<int>(i));
}

TEST(Study, FiguresOfATrialAreThoseOfItsLaunch) {
  World world;
  world.measure = [](const EvaluationRequest&) {
    Measurement measurement;
    measurement.samples = {90, 110, 90, 110, 90, 110};
    measurement.seconds = 5;
    return measurement;
  };
  const auto journal = make_memory_journal();
  const StudyResult result = run_study(Strategy(small_space(), options_of(1)), lanes_of(world), *journal);
  EXPECT_NEAR(result.trials[0].throughput, 100, 1e-9);
  EXPECT_GT(result.trials[0].relative_error, 0);
  EXPECT_EQ(result.trials[0].purpose, Purpose::kBaseline);
}

// Failures are charged like successes, and a worker that takes no notice of its budget still cannot overrun the whole.
TEST(Study, NeverSpendsMoreThanItsBudget) {
  for (const bool adapts : {true, false}) {
    for (const double budget : {100.0, 777.0, 1000.0}) {
      World world;
      world.devices = 2;
      world.adapts = adapts;
      world.measure = [adapts](const EvaluationRequest& request) {
        return synthetic(request, adapts ? std::min(40.0, request.budget_seconds) : 40.0);
      };
      const auto journal = make_memory_journal();
      const StudyResult result = run_study(Strategy(small_space(), options_of(40, budget)), lanes_of(world), *journal);
      EXPECT_LE(charged(result.trials), budget) << "adapts " << adapts;
      EXPECT_GT(charged(result.trials), budget - 2 * 45) << "adapts " << adapts << ": it could have paid for one more";
      EXPECT_EQ(result.out_of_budget, true);
      for (const EvaluationRequest& request : world.requests) EXPECT_GT(request.hard_seconds, 0);
    }
  }
}

TEST(StudyTiming, EndsATrialWhenTheBudgetEnds) {
  World world;
  world.measure = [](const EvaluationRequest& request) {  // a program that is killed at its hard limit
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(10.0, request.budget_seconds)));
    return synthetic(request, 0);
  };
  const auto journal = make_memory_journal();
  const Stopwatch watch;
  StrategyOptions options = options_of(40, 0.5);
  options.trial_seconds = 4;
  const StudyResult result = run_study(Strategy(small_space(), options), lanes_of(world), *journal);
  EXPECT_LT(watch.seconds(), 5);
  EXPECT_GE(result.trials.size(), 1u);
  EXPECT_LE(charged(result.trials), 0.5 + 0.2);
}

// A journal that has the first trials already, as after a kill.
std::unique_ptr<Journal> journal_with(const std::vector<Trial>& trials, std::size_t count, double interrupted = 0) {
  auto journal = make_memory_journal();
  for (std::size_t i = 0; i < count; ++i) journal->end(trials[i]);
  Trial cut_off;
  cut_off.number = static_cast<std::int64_t>(count);
  cut_off.gpu_seconds = interrupted;
  journal->begin(cut_off);
  journal->alive(cut_off, interrupted);
  return journal;
}

void expect_same(const StudyResult& a, const StudyResult& b, const Space& space) {
  ASSERT_EQ(a.trials.size(), b.trials.size());
  for (std::size_t i = 0; i < a.trials.size(); ++i) {
    EXPECT_EQ(a.trials[i].config, b.trials[i].config) << i;
    EXPECT_EQ(a.trials[i].purpose, b.trials[i].purpose) << i;
    EXPECT_EQ(a.trials[i].samples, b.trials[i].samples) << i;
    EXPECT_EQ(a.trials[i].gpu_seconds, b.trials[i].gpu_seconds) << i;
    EXPECT_EQ(a.trials[i].budget_seconds, b.trials[i].budget_seconds) << i;
  }
  EXPECT_EQ(to_json(a.conclusion, space).dump(), to_json(b.conclusion, space).dump());
}

TEST(Study, ResumedEndsAsTheUndisturbedOne) {
  World world;
  world.measure = [](const EvaluationRequest& request) { return synthetic(request, 30); };
  for (const double budget : {0.0, 400.0}) {
    const Strategy strategy(small_space(), options_of(18, budget));
    const auto journal = make_memory_journal();
    const StudyResult whole = run_study(strategy, lanes_of(world), *journal);
    for (const std::size_t cut : {0u, 1u, 7u, 12u, 13u}) {
      if (cut > whole.trials.size()) continue;
      const auto rest = journal_with(whole.trials, cut, 0.01);
      world.requests.clear();
      const StudyResult resumed = run_study(strategy, lanes_of(world), *rest);
      expect_same(whole, resumed, strategy.space());
      EXPECT_EQ(world.requests.size(), whole.trials.size() - cut) << "what was measured is not measured again";
      if (!world.requests.empty()) {
        EXPECT_EQ(world.requests[0].trial, static_cast<std::int64_t>(cut));
      }
    }
  }
}

TEST(Study, AttemptsThatWereCutOffAreCharged) {
  World world;
  world.measure = [](const EvaluationRequest& request) {
    return synthetic(request, std::min(30.0, request.budget_seconds));
  };
  const auto journal = journal_with({}, 0, 290);
  const StudyResult result = run_study(Strategy(small_space(), options_of(20, 400)), lanes_of(world), *journal);
  EXPECT_LE(charged(result.trials), 110);
  EXPECT_EQ(result.interrupted_gpu_seconds, 290);
}

TEST(Study, RunsTrialsInParallelLanes) {
  World world;
  world.measure = [&](const EvaluationRequest& request) {  // the first ones wait for each other
    const auto met = [&] {
      const std::lock_guard lock(world.mutex);
      return world.most_running == 3;
    };
    for (const Deadline deadline = Deadline::after(300); !met() && !deadline.expired();) std::this_thread::yield();
    return synthetic(request, 30);
  };
  const auto journal = make_memory_journal();
  const StudyResult result = run_study(Strategy(small_space(), options_of(14, 600)), lanes_of(world, 3), *journal);
  EXPECT_EQ(world.most_running, 3);
  EXPECT_LE(charged(result.trials), 600);
  EXPECT_EQ(result.trials.size(), 14u);
  for (std::size_t i = 0; i < result.trials.size(); ++i) EXPECT_EQ(result.trials[i].number, static_cast<int>(i));
}

TEST(Study, StopsWhenToldAndKeepsWhatItHas) {
  World world;
  std::atomic<bool> stop = false;
  world.measure = [&](const EvaluationRequest& request) {
    if (request.trial == 3) {
      stop = true;
      for (const Deadline deadline = Deadline::after(300); !*request.stop && !deadline.expired();)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      EXPECT_TRUE(*request.stop);
    }
    return synthetic(request, 30);
  };
  const auto journal = make_memory_journal();
  const StudyResult result = run_study(Strategy(small_space(), options_of(10)), lanes_of(world), *journal, &stop);
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.trials.size(), 3u) << "the fourth was thrown away";
  EXPECT_EQ(journal->trials().size(), 3u);
}

TEST(Study, GivesUpWhereTheEvaluatorDoes) {
  World world;
  world.measure = [](const EvaluationRequest& request) {
    if (request.trial == 2) throw UserError(ExitCode::kRunFailed, "the worker is gone", "start it");
    return synthetic(request, 30);
  };
  const auto journal = make_memory_journal();
  const std::string error = user_error(
      [&] { run_study(Strategy(small_space(), options_of(10)), lanes_of(world, 2), *journal); }, ExitCode::kRunFailed);
  EXPECT_HAS(error, "the worker is gone");
  EXPECT_GE(journal->trials().size(), 2u - 1u);
}

TEST(Study, GivesUpWhenNothingButCrashesCome) {
  World world;
  world.measure = [](const EvaluationRequest&) {
    Measurement measurement;
    measurement.outcome = Outcome::kCrash;
    measurement.message = "ModuleNotFoundError: torch";
    return measurement;
  };
  const auto journal = make_memory_journal();
  const std::string error = user_error(
      [&] { run_study(Strategy(small_space(), options_of(40)), lanes_of(world), *journal); }, ExitCode::kRunFailed);
  EXPECT_HAS(error, "ModuleNotFoundError");
  EXPECT_EQ(world.requests.size(), 3u);  // the default among them: somebody runs that
}

// What `python3 nofile.py` does: it ends with 2 whatever the setting.
TEST(Study, GivesUpWhenEverySettingIsRefusedAlike) {
  World world;
  const char* missing = "exit code 2: python3: can't open file 'nofile.py': [Errno 2] No such file or directory";
  world.measure = [&](const EvaluationRequest&) {
    Measurement measurement;
    measurement.outcome = Outcome::kInvalid;
    measurement.message = missing;
    return measurement;
  };
  const auto journal = make_memory_journal();
  const std::string error = user_error(
      [&] { run_study(Strategy(small_space(), options_of(40)), lanes_of(world), *journal); }, ExitCode::kRunFailed);
  EXPECT_HAS(error, "all were refused");
  EXPECT_HAS(error, "nofile.py");
  EXPECT_EQ(world.requests.size(), 3u);
}

// Without a default nobody is known to run any of the settings, so more of them have to fail alike.
TEST(Study, GivesUpLaterWithoutADefault) {
  const Space space = Space::parse(
      "knobs:\n"
      "  micro_batch: {choices: [1, 2, 4, 8, 16]}\n"
      "  num_workers: {int: [0, 4], default: 0}\n",
      "space.yaml");
  ASSERT_FALSE(space.has_default());
  for (const Outcome outcome : {Outcome::kCrash, Outcome::kInvalid}) {
    World world;
    world.measure = [&](const EvaluationRequest&) {
      Measurement measurement;
      measurement.outcome = outcome;
      measurement.message = "exit code 2: no such file";
      return measurement;
    };
    const auto journal = make_memory_journal();
    const std::string error = user_error([&] { run_study(Strategy(space, options_of(40)), lanes_of(world), *journal); },
                                         ExitCode::kRunFailed);
    EXPECT_HAS(error, "the first 6 trials all");
    EXPECT_EQ(world.requests.size(), 6u) << to_string(outcome);
  }
}

// Crashes that differ may still be of the settings: the default among them does not end the study sooner.
TEST(Study, GivesUpLaterWhenTheCrashesDiffer) {
  World world;
  world.measure = [&](const EvaluationRequest&) {
    Measurement measurement;
    measurement.outcome = Outcome::kCrash;
    measurement.message = fmt::format("crash {}", world.requests.size());
    return measurement;
  };
  const auto journal = make_memory_journal();
  user_error([&] { run_study(Strategy(small_space(), options_of(40)), lanes_of(world), *journal); },
             ExitCode::kRunFailed);
  EXPECT_EQ(world.requests.size(), 6u);
}

// Refusals that differ are about the settings, so the study goes on.
TEST(Study, GoesOnAfterRefusalsThatDiffer) {
  World world;
  world.measure = [&](const EvaluationRequest& request) {
    if (world.requests.size() > 8) return synthetic(request, 30);
    Measurement measurement;
    measurement.outcome = Outcome::kInvalid;
    measurement.message = fmt::format("refused for reason {}", world.requests.size());
    return measurement;
  };
  const auto journal = make_memory_journal();
  const StudyResult result = run_study(Strategy(small_space(), options_of(20)), lanes_of(world), *journal);
  EXPECT_EQ(result.trials.size(), 20u);
}

TEST(Study, OnlyExplorationRaces) {
  World world;
  world.measure = [](const EvaluationRequest& request) { return synthetic(request, 30); };
  const auto journal = make_memory_journal();
  const StudyResult result = run_study(Strategy(small_space(), options_of(24)), lanes_of(world), *journal);
  std::size_t racing = 0;
  for (std::size_t i = 0; i < result.trials.size(); ++i) {
    const bool races = static_cast<bool>(world.requests[i].keep_going);
    EXPECT_EQ(races, result.trials[i].purpose == Purpose::kExplore) << i;
    racing += races ? 1 : 0;
    if (!races || i < 3) continue;
    const std::vector<double> hopeless(20, 1.0), splendid(20, 1e6);
    EXPECT_FALSE(world.requests[i].keep_going(hopeless));
    EXPECT_TRUE(world.requests[i - 0].keep_going(splendid));
  }
  EXPECT_GT(racing, 3u);
}

TEST(Study, TellsItsProgress) {
  World world;
  world.measure = [](const EvaluationRequest& request) {
    if (request.trial == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return synthetic(request, 30);
  };
  std::int64_t ended = 0, signs_of_life = 0;
  const auto journal = make_memory_journal();
  run_study(Strategy(small_space(), options_of(5)), lanes_of(world), *journal, nullptr, [&](const StudyProgress& now) {
    (now.ended != nullptr ? ended : signs_of_life) += 1;
    if (now.ended == nullptr) return;
    EXPECT_EQ(now.done, ended);
    EXPECT_NE(now.proposal, nullptr);
    EXPECT_GE(now.best_throughput, now.ended->throughput);
  });
  EXPECT_EQ(ended, 5);
  EXPECT_GE(signs_of_life, 1);
}

}  // namespace
}  // namespace lockstep::tune
