// Workers and commands as real processes, well-behaved and not.
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "lockstep/tune/evaluators/command.h"
#include "lockstep/tune/evaluators/worker.h"
#include "tests/base/expect_user_error.h"

namespace lockstep::tune {
namespace {

using testing::user_error;

const std::string kFolder = std::string(LOCKSTEP_SOURCE_DIR) + "/tests/tune/";

Space synthetic_space() { return Space::load(kFolder + "synthetic_space.yaml"); }

EvaluationRequest request_of(const Space& space, std::int64_t trial, double budget = 20) {
  EvaluationRequest request;
  request.trial = trial;
  request.config = space.default_config();
  request.budget_seconds = budget;
  return request;
}

class Worker {
 public:
  explicit Worker(const std::string& arguments,
                  const std::string& program = "python3 " + kFolder + "synthetic_worker.py ")
      : evaluator_(make_worker_evaluator(space_, {.command = program + arguments})) {}
  Measurement ask(std::int64_t trial, double budget = 20, double hard = 0) {
    EvaluationRequest request = request_of(space_, trial, budget);
    request.hard_seconds = hard;
    return evaluator_->evaluate(request);
  }
  Evaluator& evaluator() { return *evaluator_; }

 private:
  Space space_ = synthetic_space();
  std::unique_ptr<Evaluator> evaluator_;
};

TEST(WorkerEvaluator, MeasuresOneConfigurationAfterTheOther) {
  Worker worker("--seconds 40");
  const Measurement first = worker.ask(0), second = worker.ask(1);
  EXPECT_EQ(first.outcome, Outcome::kMeasured) << first.message;
  EXPECT_EQ(first.samples.size(), 10u);
  EXPECT_GE(first.seconds, 40);
  EXPECT_NE(first.samples, second.samples) << "noise is keyed by the trial";
  EXPECT_EQ(Worker("--seconds 40").ask(1).samples, second.samples);
}

TEST(WorkerEvaluator, AHopelessTrialEndsAfterItsFirstSamples) {
  Worker worker("--seconds 40 --report");
  EvaluationRequest request = request_of(synthetic_space(), 0);
  std::size_t asked = 0;
  request.keep_going = [&](std::span<const double> samples) {
    asked = samples.size();
    return samples.size() < 3;
  };
  const Measurement stopped = worker.evaluator().evaluate(request);
  EXPECT_TRUE(stopped.stopped_early);
  EXPECT_GE(stopped.samples.size(), 3u);
  EXPECT_LT(stopped.samples.size(), 10u);
  EXPECT_LT(stopped.seconds, 40);
  EXPECT_GE(asked, 3u);
  request.trial = 1;
  request.keep_going = [](std::span<const double>) { return true; };
  const Measurement whole = worker.evaluator().evaluate(request);
  EXPECT_EQ(whole.samples.size(), 10u) << "the stop was for the trial before";
  EXPECT_FALSE(whole.stopped_early);
}

TEST(WorkerEvaluator, OneThatDoesNotLookIsMeasuredToItsEnd) {
  Worker worker("--seconds 40");
  EvaluationRequest request = request_of(synthetic_space(), 0);
  request.keep_going = [](std::span<const double>) { return false; };
  const Measurement measurement = worker.evaluator().evaluate(request);
  EXPECT_EQ(measurement.samples.size(), 10u);
  EXPECT_FALSE(measurement.stopped_early);
}

TEST(WorkerEvaluator, AnswersWithOtherFigures) {
  EXPECT_EQ(Worker("--memory").ask(0).values.count("memory_bytes"), 1u);
  const auto bad = parse_worker_line(R"({"samples":[5],"values":{"memory_bytes":-1}})", 0);
  EXPECT_EQ(bad->outcome, Outcome::kCrash);
  EXPECT_EQ(parse_worker_sample(R"({"trial":3,"sample":5.5})", 3), 5.5);
  for (const char* line : {R"({"trial":2,"sample":5})", R"({"sample":-5})", R"({"samples":[5]})", "sample 5"})
    EXPECT_FALSE(parse_worker_sample(line, 3)) << line;
}

TEST(CommandEvaluator, OtherFiguresAreReadFromWhatIsPrinted) {
  TemporaryFolder folder;
  const std::string script = (folder.path() / "train.py").string();
  std::ofstream(script) << "for memory in (5, 9, 7):\n"
                           "    print('tokens_per_second: 100', 'memory_bytes:', memory, 'latency_ms=%d' % memory)\n";
  CommandOptions options;
  options.command = "python3 " + script;
  options.values = {"memory_bytes", "latency_ms", "never_printed"};
  const Space space = synthetic_space();
  const Measurement measurement = make_command_evaluator(space, options)->evaluate(request_of(space, 0));
  ASSERT_EQ(measurement.outcome, Outcome::kMeasured) << measurement.message;
  EXPECT_EQ(measurement.values, (std::map<std::string, double>{{"memory_bytes", 9}, {"latency_ms", 7}}));
}

TEST(CommandEvaluator, SeesWhatItsProcessesHold) {
  TemporaryFolder folder;
  const std::string script = (folder.path() / "train.py").string();
  std::ofstream(script)
      << "import time\nheld = bytearray(80 << 20)\nprint('tokens_per_second: 1', flush=True)\ntime.sleep(1.5)\n";
  CommandOptions options;
  options.command = "python3 " + script;
  options.values = {"host_memory_bytes"};
  const Space space = synthetic_space();
  const Measurement measurement = make_command_evaluator(space, options)->evaluate(request_of(space, 0));
  ASSERT_EQ(measurement.values.count("host_memory_bytes"), 1u) << measurement.message;
  EXPECT_GT(measurement.values.at("host_memory_bytes"), 80e6);
}

TEST(WorkerEvaluator, LeavesInactiveKnobsOut) {
  TemporaryFolder folder;
  const std::string script = (folder.path() / "echo.py").string();
  std::ofstream(script) << "import sys, json\n"
                           "for line in sys.stdin:\n"
                           "    config = json.loads(line)['config']\n"
                           "    print(json.dumps({'failed': ' '.join(sorted(config))}), flush=True)\n";
  const Measurement answer = Worker("", "python3 " + script).ask(0);
  EXPECT_EQ(answer.message, "NCCL_ALGO bucket_mib micro_batch num_workers recompute");
}

TEST(WorkerEvaluator, WrongAnswersAreOutcomesAndTheNextTrialIsRight) {
  Worker worker(
      "--misbehave 0:broken --misbehave 1:nan --misbehave 2:empty --misbehave 3:negative --misbehave 4:word "
      "--misbehave 6:noise --misbehave 7:twice");
  for (int trial = 0; trial < 5; ++trial) {
    const Measurement answer = worker.ask(trial);
    EXPECT_EQ(answer.outcome, Outcome::kCrash) << trial;
    EXPECT_FALSE(answer.message.empty());
  }
  Worker flawless("");
  for (int trial = 5; trial < 9; ++trial) {
    const Measurement answer = worker.ask(trial);
    EXPECT_EQ(answer.outcome, Outcome::kMeasured) << trial << " " << answer.message;
    EXPECT_EQ(answer.samples, flawless.ask(trial).samples) << "an answer of another trial was taken for " << trial;
  }
}

TEST(WorkerEvaluator, GarbageInsteadOfAnAnswerIsNotWaitedForUntilTheBudgetEnds) {
  Worker worker("--misbehave 0:garbage --misbehave 1:typo");
  // A budget of ten hours: waiting for its end would be the end of the test.
  const Measurement garbage = worker.ask(0, 36000);
  EXPECT_EQ(garbage.outcome, Outcome::kCrash);
  EXPECT_HAS(garbage.message, "this is no answer");
  EXPECT_EQ(worker.ask(1, 36000).outcome, Outcome::kCrash);
  EXPECT_EQ(worker.ask(2, 36000).outcome, Outcome::kMeasured);
}

TEST(WorkerEvaluator, ADeadWorkerIsStartedAgain) {
  Worker worker("--misbehave 1:die --misbehave 2:exit");
  EXPECT_EQ(worker.ask(0).outcome, Outcome::kMeasured);
  const Measurement died = worker.ask(1);
  EXPECT_EQ(died.outcome, Outcome::kOutOfMemory) << "it printed so";
  EXPECT_HAS(died.message, "CUDA out of memory");
  const Measurement left = worker.ask(2);
  EXPECT_EQ(left.outcome, Outcome::kCrash);
  EXPECT_HAS(left.message, "ValueError: something else");
  EXPECT_EQ(worker.ask(3).outcome, Outcome::kMeasured);
}

TEST(WorkerEvaluator, AHangEndsAtTheHardLimit) {
  Worker worker("--misbehave 1:hang");
  EXPECT_EQ(worker.ask(0).outcome, Outcome::kMeasured);
  const Measurement hung = worker.ask(1, 0.5, 0.6);
  EXPECT_EQ(hung.outcome, Outcome::kHang);
  EXPECT_GE(hung.seconds, 0.6);
  EXPECT_EQ(worker.ask(2).outcome, Outcome::kMeasured);
}

TEST(WorkerEvaluator, AWorkerThatCannotStartIsAUserError) {
  Worker broken("", "python3 -c \"import sys; sys.exit('no module named torch')\"");
  const std::string error = user_error([&] { broken.ask(0); }, ExitCode::kRunFailed);
  EXPECT_HAS(error, "three times");
  EXPECT_HAS(error, "no module named torch");
  EXPECT_HAS(user_error([&] { Worker("", "/no/such/program").ask(0); }, ExitCode::kEnvironment), "/no/such/program");
}

TEST(WorkerEvaluator, AWorkerThatDiesOnEveryTrialIsGivenUp) {
  Worker worker("--misbehave all:exit");
  const std::string error = user_error(
      [&] {
        for (int trial = 0; trial < 20; ++trial) EXPECT_EQ(worker.ask(trial).outcome, Outcome::kCrash);
      },
      ExitCode::kRunFailed);
  EXPECT_HAS(error, "6 trials in a row");
}

TEST(WorkerEvaluator, EndsWhenTold) {
  Worker worker("--sleep 100000");
  std::atomic<bool> stop = true;
  EvaluationRequest request = request_of(synthetic_space(), 0, 200000);
  request.stop = &stop;
  worker.evaluator().evaluate(request);  // comes back at all
}

// A training script in small: what it does is told by micro_batch.
class Command {
 public:
  explicit Command(CommandOptions options = {}) {
    script_ = (folder_.path() / "train.py").string();
    std::ofstream(script_)
        << "import os, sys, time\n"
           "how = sys.argv[1]\n"
           "def speak(*words): print(*words, flush=True)\n"
           "def rate(value): speak(f'step tokens_per_second: {value}')\n"
           "if how == 'good': [rate(v) for v in (10, 20, 30)]\n"
           "if how == 'oom': rate(10); sys.exit('torch.cuda.OutOfMemoryError: CUDA out of memory.')\n"
           "if how == 'refused': sys.exit(2)\n"
           "if how == 'crash': raise ZeroDivisionError('division by zero')\n"
           "if how == 'mute': speak('bye')\n"
           "if how == 'hang': speak('working'); time.sleep(100000)\n"
           "if how == 'endless':\n"
           "    while True: rate(50); time.sleep(0.02)\n"
           "if how == 'hungry':\n"
           "    block = bytearray(os.urandom(1 << 20) * 200); speak('ate', len(block)); time.sleep(100000)\n"
           "if how == 'killed': os.kill(os.getpid(), 9)\n"
           "if how == 'folder': rate(1 + len(os.listdir('.'))); open('litter', 'w')\n"
           "if how == 'late': import signal; signal.signal(signal.SIGTERM, lambda *a: (rate(77), "
           "sys.exit(0))); time.sleep(100000)\n";
    options_ = std::move(options);
  }

  Measurement run(const std::string& how, double budget = 20, std::function<bool(std::span<const double>)> keep = {}) {
    options_.command = "python3 " + script_ + " " + how;
    EvaluationRequest request = request_of(space_, 0, budget);
    request.keep_going = std::move(keep);
    return make_command_evaluator(space_, options_)->evaluate(request);
  }

 private:
  TemporaryFolder folder_;
  std::string script_;
  CommandOptions options_;
  Space space_ = synthetic_space();
};

TEST(CommandEvaluator, ReadsWhatTheProgramPrints) {
  const Measurement good = Command().run("good");
  EXPECT_EQ(good.outcome, Outcome::kMeasured) << good.message;
  EXPECT_EQ(good.samples, (std::vector<double>{10, 20, 30}));
  EXPECT_GT(good.seconds, 0);
}

TEST(CommandEvaluator, ClassifiesFailures) {
  const std::pair<const char*, Outcome> cases[] = {{"oom", Outcome::kOutOfMemory},
                                                   {"refused", Outcome::kInvalid},
                                                   {"crash", Outcome::kCrash},
                                                   {"mute", Outcome::kCrash},
                                                   {"killed", Outcome::kOutOfMemory}};
  Command command;
  for (const auto& [how, outcome] : cases) {
    const Measurement failed = command.run(how);
    EXPECT_EQ(failed.outcome, outcome) << how << ": " << failed.message;
    EXPECT_TRUE(failed.samples.empty()) << how;
    EXPECT_FALSE(failed.message.empty()) << how;
  }
  EXPECT_HAS(command.run("crash").message, "ZeroDivisionError");
}

TEST(CommandEvaluator, WhatWasSeenUntilTheBudgetEndsCounts) {
  const Measurement endless = Command().run("endless", 4);
  EXPECT_EQ(endless.outcome, Outcome::kMeasured) << endless.message;
  EXPECT_GT(endless.samples.size(), 2u);
  EXPECT_EQ(Command().run("late", 4).samples, (std::vector<double>{77})) << "printed on the way out";
}

TEST(CommandEvaluator, SilenceIsAHang) {
  const Measurement hang = Command({.hang_seconds = 1}).run("hang", 36000);
  EXPECT_EQ(hang.outcome, Outcome::kHang);
  const Measurement timeout = Command().run("hang", 4);
  EXPECT_EQ(timeout.outcome, Outcome::kTimeout);
  EXPECT_HAS(timeout.message, "last line: working");
}

TEST(CommandEvaluator, RacingEndsIt) {
  const Measurement stopped =
      Command().run("endless", 36000, [](std::span<const double> samples) { return samples.size() < 3; });
  EXPECT_EQ(stopped.outcome, Outcome::kMeasured);
  EXPECT_TRUE(stopped.stopped_early);
  EXPECT_GE(stopped.samples.size(), 3u);
}

TEST(CommandEvaluator, MoreMemoryThanAllowedIsOutOfMemory) {
  const Measurement hungry = Command({.memory_bytes = 100.0 * (1 << 20)}).run("hungry", 36000);
  EXPECT_EQ(hungry.outcome, Outcome::kOutOfMemory) << hungry.message;
}

TEST(CommandEvaluator, AFolderOfItsOwnIsEmptyAndGoesAway) {
  Command command({.own_folder = true});
  EXPECT_EQ(command.run("folder").samples, (std::vector<double>{1}));
  EXPECT_EQ(command.run("folder").samples, (std::vector<double>{1}));
}

TEST(CommandEvaluator, AMissingProgramIsAUserError) {
  const Space space = synthetic_space();
  const auto evaluator = make_command_evaluator(space, {.command = "/no/such/program {micro_batch}"});
  EXPECT_HAS(user_error([&] { evaluator->evaluate(request_of(space, 0)); }, ExitCode::kEnvironment),
             "/no/such/program");
}

TEST(CommandEvaluator, ChargesTheDevicesThatATrialHolds) {
  const Space space = synthetic_space();
  const auto evaluator = make_command_evaluator(space, {.command = "true", .devices = "8"});
  EXPECT_EQ(evaluator->devices(space.default_config()), 8);
}

}  // namespace
}  // namespace lockstep::tune
