// A lane and its worker on another machine: here two threads and a folder.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"
#include "lockstep/tune/evaluators/remote.h"
#include "tests/base/expect_user_error.h"

namespace lockstep::tune {
namespace {

using testing::has;
using testing::user_error;

Space synthetic_space() { return Space::load(std::string(LOCKSTEP_SOURCE_DIR) + "/tests/tune/synthetic_space.yaml"); }

// Prints a sample every 10 ms, `count` of them.
class Counting : public Evaluator {
 public:
  explicit Counting(int count) : count_(count) {}
  double devices(const Config&) const override { return 2; }
  std::string unit() const override { return "rows/s"; }
  void finish() override { ++finished; }

  Measurement evaluate(const EvaluationRequest& request) override {
    ++evaluations;
    Measurement measurement;
    const Stopwatch watch;
    for (int i = 0; i < count_; ++i) {
      if (*request.stop) {
        measurement.outcome = Outcome::kCrash;
        measurement.message = "stopped";
        break;
      }
      measurement.samples.push_back(100 + i);
      if (!request.keep_going(measurement.samples)) {
        measurement.stopped_early = true;
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    measurement.seconds = watch.seconds();
    return measurement;
  }

  std::atomic<int> evaluations = 0, finished = 0;

 private:
  const int count_;
};

// Workers as threads of this process.
class Threads : public LaneTasks {
 public:
  Threads(const std::filesystem::path& folder, int samples) : folder_(folder), evaluator(samples) {}
  ~Threads() override { end(); }

  State state(std::size_t) override {
    const std::lock_guard lock(mutex_);
    return now_;
  }
  void start_again(std::size_t) override {
    ++started;
    if (refuse) return;
    launch();
  }

  void launch() {
    end();
    asked_ = WorkerEnd::kNo;
    set({Phase::kRunning, "on a thread"});
    thread_ = std::thread([this] {
      ServeOptions options;
      options.folder = folder_;
      options.owner_seconds = owner_seconds;
      options.idle_seconds = idle_seconds;
      options.end_was_asked = [this] { return asked_.load(); };
      serve_trials(evaluator, space_, options);
      ended = true;
    });
  }
  // As when the node is taken away: no result is written.
  void lose() {
    asked_ = WorkerEnd::kNow;
    end();
    set({Phase::kGone, "NODE_FAIL"});
  }
  void end() {
    asked_ = WorkerEnd::kNow;
    if (thread_.joinable()) thread_.join();
  }
  void join() { thread_.join(); }
  void set(State state) {
    const std::lock_guard lock(mutex_);
    now_ = std::move(state);
  }

 private:
  const std::filesystem::path folder_;
  const Space space_ = synthetic_space();
  std::mutex mutex_;
  State now_;
  std::atomic<WorkerEnd> asked_ = WorkerEnd::kNo;
  std::thread thread_;

 public:
  Counting evaluator;
  double owner_seconds = 180, idle_seconds = 600;
  std::atomic<int> started = 0;
  std::atomic<bool> ended = false, refuse = false;
};

class RemoteEvaluator : public ::testing::Test {
 protected:
  void begin(int samples, int attempts = 3, double quiet_seconds = 90) {
    tasks = std::make_shared<Threads>(folder.path(), samples);
    evaluator =
        make_remote_evaluator(std::make_unique<Counting>(0), space, {folder.path(), 0, quiet_seconds, attempts}, tasks);
  }
  EvaluationRequest request(std::int64_t trial = 7) {
    EvaluationRequest request;
    request.trial = trial;
    request.config = space.default_config();
    request.budget_seconds = 60;
    request.stop = &stop;
    return request;
  }
  void wait_for(const std::function<bool()>& condition) {
    const Deadline deadline = Deadline::after(60);
    while (!condition() && !deadline.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ASSERT_TRUE(condition());
  }

  TemporaryFolder folder;
  Space space = synthetic_space();
  std::atomic<bool> stop = false;
  std::shared_ptr<Threads> tasks;
  std::unique_ptr<Evaluator> evaluator;
};

TEST_F(RemoteEvaluator, measures_one_trial_after_the_other) {
  begin(5);
  const RemoteOwner owner(folder.path());
  tasks->launch();
  for (int trial = 0; trial < 3; ++trial) {
    const Measurement measured = evaluator->evaluate(request(trial));
    EXPECT_EQ(measured.outcome, Outcome::kMeasured) << measured.message;
    EXPECT_EQ(measured.samples, (std::vector<double>{100, 101, 102, 103, 104}));
  }
  EXPECT_EQ(tasks->evaluator.evaluations, 3);
  EXPECT_EQ(evaluator->unit(), "rows/s");
  EXPECT_EQ(evaluator->devices(space.default_config()), 2);
}

TEST_F(RemoteEvaluator, time_in_the_queue_is_not_charged) {
  begin(5);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    tasks->launch();
  });
  const Stopwatch watch;
  const Measurement measured = evaluator->evaluate(request());
  const double wall = watch.seconds();
  later.join();
  EXPECT_EQ(measured.outcome, Outcome::kMeasured);
  EXPECT_GE(measured.waited_seconds, 1.4);
  EXPECT_LE(measured.waited_seconds + measured.seconds, wall + 1e-3);
}

TEST_F(RemoteEvaluator, racing_ends_a_trial_on_the_node) {
  begin(100'000);
  tasks->launch();
  EvaluationRequest asked = request();
  asked.keep_going = [](std::span<const double> samples) { return samples.size() < 20; };
  const Measurement measured = evaluator->evaluate(asked);
  EXPECT_TRUE(measured.stopped_early);
  EXPECT_EQ(measured.outcome, Outcome::kMeasured);
  EXPECT_GE(measured.samples.size(), 20u);
}

TEST_F(RemoteEvaluator, a_trial_whose_node_is_lost_is_measured_by_the_next_worker) {
  begin(150);
  tasks->launch();
  std::thread disaster([&] {
    wait_for([&] { return tasks->evaluator.evaluations == 1; });
    tasks->lose();
  });
  const Measurement measured = evaluator->evaluate(request());
  disaster.join();
  EXPECT_EQ(measured.outcome, Outcome::kMeasured) << measured.message;
  EXPECT_EQ(measured.samples.size(), 150u);
  EXPECT_EQ(tasks->evaluator.evaluations, 2);
  EXPECT_EQ(tasks->started, 1);
}

TEST_F(RemoteEvaluator, a_trial_that_takes_its_node_down_each_time_counts_as_a_crash) {
  begin(100'000, 2);
  tasks->launch();
  std::atomic<bool> seen = false;  // by the lane: a worker has it
  std::thread disaster([&] {
    for (int i = 1; i <= 2; ++i) {
      wait_for([&] { return tasks->evaluator.evaluations == i && seen; });
      tasks->lose();
      seen = false;
    }
  });
  EvaluationRequest asked = request();
  asked.keep_going = [&](std::span<const double>) { return seen = true; };
  const Measurement measured = evaluator->evaluate(asked);
  disaster.join();
  EXPECT_EQ(measured.outcome, Outcome::kCrash);
  EXPECT_TRUE(has(measured.message, "lost 2 times: NODE_FAIL"));
}

TEST_F(RemoteEvaluator, a_worker_that_goes_silent_is_replaced) {
  begin(5, 3, 1.0);
  tasks->set({LaneTasks::Phase::kRunning, "on a node that hangs"});  // nothing serves
  EXPECT_EQ(evaluator->evaluate(request()).outcome, Outcome::kMeasured);
  EXPECT_EQ(tasks->started, 1);
}

TEST_F(RemoteEvaluator, workers_that_never_come_up_end_the_study) {
  begin(5);
  tasks->set({LaneTasks::Phase::kGone, "FAILED"});
  tasks->refuse = true;
  const std::string error = user_error([&] { evaluator->evaluate(request()); }, ExitCode::kEnvironment);
  EXPECT_TRUE(has(error, "FAILED"));
}

TEST_F(RemoteEvaluator, a_task_that_the_user_cancelled_is_not_started_again) {
  begin(5);
  tasks->set({LaneTasks::Phase::kCancelled, ""});
  EXPECT_TRUE(has(user_error([&] { evaluator->evaluate(request()); }, ExitCode::kEnvironment), "was cancelled"));
  EXPECT_EQ(tasks->started, 0);
}

TEST_F(RemoteEvaluator, ctrl_c_ends_the_trial_on_the_node) {
  begin(100'000);
  tasks->launch();
  std::thread user([&] {
    wait_for([&] { return tasks->evaluator.evaluations == 1; });
    stop = true;
  });
  const Measurement measured = evaluator->evaluate(request());
  user.join();
  EXPECT_EQ(measured.message, "stopped");
}

TEST_F(RemoteEvaluator, workers_end_with_the_study) {
  begin(100'000);
  {
    const RemoteOwner owner(folder.path());
    tasks->launch();
    EXPECT_FALSE(tasks->ended);
  }
  tasks->join();
  EXPECT_EQ(tasks->evaluator.finished, 1);
}

TEST_F(RemoteEvaluator, workers_end_when_the_study_was_killed) {
  begin(5);
  tasks->owner_seconds = 1;
  tasks->launch();  // nobody counts
  tasks->join();
  EXPECT_TRUE(tasks->ended);
}

TEST_F(RemoteEvaluator, a_worker_without_work_gives_its_node_back_and_comes_again) {
  begin(5);
  tasks->idle_seconds = 0.3;
  tasks->launch();
  tasks->join();
  tasks->set({LaneTasks::Phase::kGone, "COMPLETED"});
  tasks->idle_seconds = 600;
  EXPECT_EQ(evaluator->evaluate(request()).outcome, Outcome::kMeasured);
  EXPECT_EQ(tasks->started, 1);
}

TEST_F(RemoteEvaluator, of_two_workers_of_a_lane_the_older_one_ends) {
  begin(5);
  tasks->launch();
  Threads second(folder.path(), 5);
  wait_for([&] { return std::filesystem::exists(folder.path() / "0.worker"); });
  second.launch();
  tasks->join();
  EXPECT_TRUE(tasks->ended);
  EXPECT_FALSE(second.ended);
}

}  // namespace
}  // namespace lockstep::tune
