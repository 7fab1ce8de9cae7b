// Command lines, placeholders, metric lines, failures and answers of workers: the pieces of the evaluators.
#include <gtest/gtest.h>

#include <csignal>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/tune/evaluators/metric.h"
#include "lockstep/tune/evaluators/process.h"
#include "lockstep/tune/evaluators/template.h"
#include "lockstep/tune/evaluators/worker.h"
#include "lockstep/tune/study/failure.h"
#include "tests/base/expect_user_error.h"

namespace lockstep::tune {
namespace {

using testing::user_error;
using Words = std::vector<std::string>;

Space small_space() {
  return Space::parse(
      "knobs:\n"
      "  micro_batch: {choices: [1, 2, 4], default: 2}\n"
      "  num_workers: {int: [0, 4], default: 1}\n"
      "  prefetch_factor: {int: [1, 8], when: 'num_workers > 0'}\n"
      "  OMP_NUM_THREADS: {choices: [1, 2]}\n",
      "space.yaml");
}

Config config_of(const Space& space, const std::string& json) {
  return space.from_json(nlohmann::json::parse(json), "test");
}

TEST(SplitCommand, QuotesAsAShellDoes) {
  EXPECT_EQ(split_command("python3 train.py --x 1").argv, (Words{"python3", "train.py", "--x", "1"}));
  EXPECT_EQ(split_command("a 'b c'  \"d e\" f\\ g ''").argv, (Words{"a", "b c", "d e", "f g", ""}));
  EXPECT_EQ(split_command(R"(a "x\"y" '\n' "\n")").argv, (Words{"a", "x\"y", "\\n", "\\n"}));
  EXPECT_EQ(split_command("a b'c'\"d\"").argv, (Words{"a", "bcd"}));
}

TEST(SplitCommand, ExpandsNothing) {
  EXPECT_EQ(split_command("echo $HOME *.py `id` $(id)").argv, (Words{"echo", "$HOME", "*.py", "`id`", "$(id)"}));
}

TEST(SplitCommand, TakesVariablesInFrontAsEnvironment) {
  const CommandLine command = split_command("OMP_NUM_THREADS=2 X='a b' python3 Y=3");
  EXPECT_EQ(command.argv, (Words{"python3", "Y=3"}));
  EXPECT_EQ(command.environment.at("X"), "a b");
  EXPECT_EQ(command.environment.at("OMP_NUM_THREADS"), "2");
}

TEST(SplitCommand, RefusesWhatOnlyAShellUnderstands) {
  for (const char* text : {"a | b", "a > out", "a && b", "a 2>&1", "a ; b"})
    EXPECT_HAS(user_error([&] { split_command(text); }), "shell");
  EXPECT_EQ(split_command("a '|' b").argv, (Words{"a", "|", "b"}));
  EXPECT_HAS(user_error([] { split_command("a 'b"); }), "open '");
  EXPECT_HAS(user_error([] { split_command("  "); }), "empty");
}

TEST(CommandTemplate, FillsPlaceholdersAndLeavesOtherBracesAlone) {
  const Space space = small_space();
  const CommandTemplate command(
      "run --mb {micro_batch} --x={num_workers}/{micro_batch} {\"a\":{\"b\":1}} {{micro_batch}} t{trial}", space);
  const auto filled = command.fill(space.default_config(), 7, 30);
  EXPECT_EQ(filled.argv, (Words{"run", "--mb", "2", "--x=1/2", "{a:{b:1}}", "{micro_batch}", "t7"}));
}

TEST(CommandTemplate, AnInactiveKnobTakesItsFlagAlong) {
  const Space space = small_space();
  const CommandTemplate command(
      "run --prefetch {prefetch_factor} --p={prefetch_factor} --both={prefetch_factor},{micro_batch} end", space);
  const Config off = config_of(space, R"({"micro_batch":4,"num_workers":0,"OMP_NUM_THREADS":1})");
  const auto filled = command.fill(off, 0, 30);
  EXPECT_EQ(filled.argv, (Words{"run", "--both=,4", "end"}));
  EXPECT_EQ(filled.environment.count("LOCKSTEP_KNOB_PREFETCH_FACTOR"), 0u);
  EXPECT_EQ(filled.unset, (Words{"LOCKSTEP_KNOB_PREFETCH_FACTOR"}));
}

TEST(CommandTemplate, KnobsNamedLikeVariablesGoToTheEnvironment) {
  const Space space = small_space();
  const auto filled = CommandTemplate("run", space).fill(space.default_config(), 3, 12.5);
  EXPECT_EQ(filled.environment.at("OMP_NUM_THREADS"), "1");
  EXPECT_EQ(filled.environment.at("LOCKSTEP_KNOB_MICRO_BATCH"), "2");
  EXPECT_EQ(filled.environment.count("micro_batch"), 0u);
  EXPECT_EQ(filled.environment.at("LOCKSTEP_TRIAL"), "3");
  EXPECT_EQ(filled.environment.at("LOCKSTEP_BUDGET_SECONDS"), "12.5");
  const auto used = CommandTemplate("run {OMP_NUM_THREADS}", space).fill(space.default_config(), 3, 12.5);
  EXPECT_EQ(used.environment.count("OMP_NUM_THREADS"), 0u);
}

TEST(CommandTemplate, AnUnknownPlaceholderIsAnsweredWithTheNearestKnob) {
  const std::string error = user_error([] { CommandTemplate("run {micro_bach}", small_space()); });
  EXPECT_HAS(error, "{micro_bach}");
  EXPECT_HAS(error, "did you mean `micro_batch`?");
}

TEST(DeviceCount, IsANumberOrAKnob) {
  const Space space = small_space();
  EXPECT_EQ(DeviceCount("", space)(space.default_config()), 1);
  EXPECT_EQ(DeviceCount("8", space)(space.default_config()), 8);
  EXPECT_EQ(DeviceCount("micro_batch", space)(space.default_config()), 2);
  EXPECT_HAS(user_error([&] { DeviceCount("micro_bach", space); }), "micro_batch");
  EXPECT_HAS(user_error([&] { DeviceCount("num_workers", space); }), "not numbers of devices");
  EXPECT_HAS(user_error([&] { DeviceCount("0", space); }), "at least one");
}

std::vector<double> values(const std::string& line, const std::string& metric = "") {
  return MetricReader(metric).read(line);
}

TEST(MetricReader, ReadsTextAndJsonLines) {
  const std::vector<double> value{1234.5};
  for (const char* line :
       {"tokens_per_second: 1234.5", "step 3 tokens_per_second=1234.5 loss=2", "tokens_per_second = 1234.5 tok/s",
        R"({"step": 3, "tokens_per_second": 1234.5})", "{'loss': 2.0, 'tokens_per_second': 1234.5}",
        "INFO train/tokens_per_second: 1.2345e3", "samples_per_second: 1234.5", "throughput: 1234.5"})
    EXPECT_EQ(values(line), value) << line;
  EXPECT_EQ(values(R"({"tokens_per_second": [1, 2.5]})"), (std::vector<double>{1, 2.5}));
  EXPECT_EQ(values("img/s: 7", "img/s"), (std::vector<double>{7}));
}

TEST(MetricReader, LeavesOtherLinesAlone) {
  for (const char* line : {"", "tokens_per_second", "my_tokens_per_second: 3", "tokens_per_second_total: 3",
                           R"({"loss": 3})", "tokens_per_second is 5", "{", R"({"tokens_per_second": "fast"})"})
    EXPECT_TRUE(values(line).empty()) << line;
}

TEST(MetricReader, RefusesWhatIsNoThroughput) {
  for (const char* line : {"tokens_per_second: nan", "tokens_per_second: -3", "tokens_per_second: 0",
                           "tokens_per_second: inf", "tokens_per_second: fast"}) {
    MetricReader reader;
    EXPECT_TRUE(reader.read(line).empty()) << line;
    EXPECT_EQ(reader.refused(), 1) << line;
  }
}

TEST(MetricReader, StaysWithTheFirstMetric) {
  MetricReader reader;
  EXPECT_EQ(reader.read("samples_per_second: 5"), (std::vector<double>{5}));
  EXPECT_TRUE(reader.read("tokens_per_second: 500").empty());
  EXPECT_EQ(reader.unit(), "samples/s");
  EXPECT_EQ(values("samples_per_second: 5, tokens_per_second: 500"), (std::vector<double>{500}));
}

Outcome outcome_of(const ExitStatus& status, const std::string& line) {
  return classify_failure(status, {"Traceback (most recent call last):", line, "bye"}).outcome;
}

TEST(Failures, AreToldApartByWhatWasPrinted) {
  const ExitStatus one{1, 0};
  for (const char* line :
       {"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:66] . DefaultCPUAllocator: can't allocate memory", "MemoryError",
        "terminate called after throwing an instance of 'std::bad_alloc'", "RuntimeError: CUDA error: out of memory",
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", "Signal 9 (SIGKILL) received by PID 12",
        "OSError: [Errno 12] Cannot allocate memory"})
    EXPECT_EQ(outcome_of(one, line), Outcome::kOutOfMemory) << line;
  for (const char* line : {"ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
                           "train.py: error: argument --mb: invalid int value: 'x'",
                           "NCCL WARN Error : no algorithm/protocol available for function AllReduce",
                           "AssertionError: batch 7 is not divisible by 2"})
    EXPECT_EQ(outcome_of(one, line), Outcome::kInvalid) << line;
  EXPECT_EQ(outcome_of(one, "[Rank 1] Watchdog caught collective operation timeout"), Outcome::kHang);
  EXPECT_EQ(outcome_of(one, "ZeroDivisionError: division by zero"), Outcome::kCrash);
}

TEST(Failures, AreToldApartByHowItEnded) {
  EXPECT_EQ(outcome_of({0, SIGKILL}, "working"), Outcome::kOutOfMemory);
  EXPECT_EQ(outcome_of({0, SIGSEGV}, "working"), Outcome::kCrash);
  EXPECT_EQ(outcome_of({137, 0}, "working"), Outcome::kOutOfMemory);
  EXPECT_EQ(outcome_of({2, 0}, "working"), Outcome::kInvalid);
  EXPECT_EQ(outcome_of({3, 0}, "working"), Outcome::kOutOfMemory);
  EXPECT_EQ(outcome_of({1, 0}, "working"), Outcome::kCrash);
  EXPECT_EQ(classify_failure({1, 0}, {"ValueError: bad", "  "}).message, "exit code 1: ValueError: bad");
}

TEST(WorkerLines, SamplesAndSeconds) {
  const auto answer = parse_worker_line(R"({"samples":[10, 20.5],"seconds":3})", 4);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->outcome, Outcome::kMeasured);
  EXPECT_EQ(answer->samples, (std::vector<double>{10, 20.5}));
  EXPECT_EQ(answer->seconds, 3);
  EXPECT_LT(parse_worker_line(R"({"samples":[10]})", 4)->seconds, 0);
}

TEST(WorkerLines, Failures) {
  const std::pair<const char*, Outcome> cases[] = {{"oom", Outcome::kOutOfMemory}, {"invalid", Outcome::kInvalid},
                                                   {"timeout", Outcome::kTimeout}, {"hang", Outcome::kHang},
                                                   {"crash", Outcome::kCrash},     {"gremlins", Outcome::kCrash}};
  for (const auto& [word, outcome] : cases) {
    const auto answer = parse_worker_line(nlohmann::json{{"failed", word}, {"seconds", 2}}.dump(), 0);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->outcome, outcome) << word;
    EXPECT_EQ(answer->seconds, 2);
  }
  EXPECT_EQ(parse_worker_line(R"({"failed":"gremlins"})", 0)->message, "gremlins");
}

TEST(WorkerLines, WrongAnswersAreCrashes) {
  for (const char* line :
       {R"({"samples":[]})", R"({"samples":5})", R"({"samples":["a"]})", R"({"samples":[NaN]})", R"({"samples":[-1]})",
        R"({"samples":[0]})", R"({"samples":[null]})", R"({"samples":[1e999]})", R"({"samples":[1],"seconds":-1})",
        R"({"samples":[1],"seconds":"x"})", R"({"failed":7})", R"({"samples":[1)", "{broken"}) {
    const auto answer = parse_worker_line(line, 0);
    ASSERT_TRUE(answer) << line;
    EXPECT_EQ(answer->outcome, Outcome::kCrash) << line;
    EXPECT_FALSE(answer->message.empty()) << line;
  }
}

TEST(WorkerLines, OtherLinesAreLogs) {
  for (const char* line : {"", "loading ...", "[1, 2]", R"({"event":"start"})", R"({"trial":3,"samples":[1]})"})
    EXPECT_FALSE(parse_worker_line(line, 4)) << line;
  EXPECT_TRUE(parse_worker_line(R"({"trial":4,"samples":[1]})", 4));
}

bool is_there(pid_t pid) { return ::kill(pid, 0) == 0; }

// Its children leave the process group and outlive it.
TEST(TrialProgram, EndsAlsoWhatLeftTheGroup) {
  SpawnOptions options;
  options.argv = {"/bin/sh", "-c", "setsid sleep 100000 & echo $!; exec sleep 100000"};
  TrialProgram program = TrialProgram::start(options);
  LineReader out(std::move(program.process().stdout_fd()));
  std::vector<std::string> lines;
  for (const Deadline deadline = Deadline::after(300); lines.empty() && !deadline.expired();) {
    out.read(lines);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ASSERT_EQ(lines.size(), 1u);
  const auto child = static_cast<pid_t>(std::stol(lines[0]));
  EXPECT_TRUE(is_there(child));
  EXPECT_GT(program.memory_bytes(), 0);
  program.end(0.2);
  for (const Deadline deadline = Deadline::after(300); is_there(child) && !deadline.expired();)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(is_there(child));
}

TEST(SampleList, many_samples_keep_their_mean_in_little_room) {
  SampleList samples;
  for (int i = 0; i < 1'000'000; ++i) samples.add(i % 2 == 0 ? 4.0 : 6.0);
  EXPECT_EQ(samples.seen(), 1'000'000);
  EXPECT_LE(samples.values().size(), 4096U);
  double sum = 0;
  for (const double value : samples.values()) sum += value;
  EXPECT_DOUBLE_EQ(sum / static_cast<double>(samples.values().size()), 5.0);
}

}  // namespace
}  // namespace lockstep::tune
