// Trials by our own engine, with a program in the engine's place that says what it was told.
#include "lockstep/tune/evaluators/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "../base/expect_user_error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::tune {
namespace {

namespace fs = std::filesystem;
using lockstep::testing::has;

const char* const kJob =
    R"(model: {arch: gpt, name: tiny, layers: 2, hidden: 32, heads: 4, vocab: 256, max_sequence: 32}
cluster: 1x2xcpu
data: {kind: text, path: /usr/share/common-licenses, tokenizer: bytes}
batch: {micro: 2, accumulation: 4, sequence_length: 32}
steps: 5
)";

const char* const kSpace = R"(knobs:
  ranks: {choices: [1, 2, 4], default: 2}
  micro_batch: {choices: [1, 2, 4, 8], default: 2}
  OMP_PROC_BIND: {choices: [close, spread]}
  zero: {choices: [0, 1, 3]}
)";

class EngineTrial : public ::testing::Test {
 protected:
  // `body` runs where `lockstep train` would; it leaves its words and its LOCKSTEP_HOME in files.
  std::unique_ptr<Evaluator> evaluator(const std::string& body, EngineOptions options = {}) {
    const fs::path program = folder_.path() / "lockstep";
    write_file_atomically(program, "#!/bin/sh\nprintf '%s\\n' \"$@\" > " + words().string() +
                                       "\necho \"$LOCKSTEP_HOME $OMP_PROC_BIND\" > " + home().string() + "\n" + body);
    fs::permissions(program, fs::perms::owner_all);
    options.executable = program;
    options.job_file = "job.yaml";
    return make_engine_evaluator(knobs_, options);
  }
  fs::path words() const { return folder_.path() / "words"; }
  fs::path home() const { return folder_.path() / "home"; }

  Measurement measure(Evaluator& evaluator, double budget = 20) {
    EvaluationRequest request;
    request.config = knobs_->space().from_json(
        {{"ranks", 4}, {"micro_batch", 8}, {"OMP_PROC_BIND", "spread"}, {"zero", 1}}, "config");
    request.budget_seconds = budget;
    request.keep_going = keep_going_;
    return evaluator.evaluate(request);
  }

  TemporaryFolder folder_;
  std::shared_ptr<const JobKnobs> knobs_ =
      std::make_shared<JobKnobs>(Space::parse(kSpace, "space.yaml"), spec::parse_job(kJob, "job.yaml"));
  std::function<bool(std::span<const double>)> keep_going_;
};

TEST_F(EngineTrial, is_a_train_with_the_knobs_and_nothing_left_behind) {
  EngineOptions options;
  options.overrides = {"seed=9"};
  options.steps = 12;
  const auto engine = evaluator(R"(touch "$LOCKSTEP_HOME/run"
for s in 1 2 3; do echo "{\"step\":$s,\"seconds\":0.1,\"tokens_per_second\":100$s.5}"; done
)",
                                options);
  const Measurement measurement = measure(*engine);
  EXPECT_EQ(measurement.outcome, Outcome::kMeasured) << measurement.message;
  EXPECT_EQ(measurement.samples, (std::vector<double>{1001.5, 1002.5, 1003.5}));
  const std::vector<std::string> told = split(trim(read_file(words())), '\n');
  const auto was_told = [&](const char* word) { return std::find(told.begin(), told.end(), word) != told.end(); };
  EXPECT_EQ(told[0], "train");
  EXPECT_EQ(told[1], "job.yaml");
  for (const char* word : {"seed=9", "cluster=1x4xcpu", "batch.micro=8", "steps=12", "checkpoint.final=false",
                           "--no-record", "--report-steps"}) {
    EXPECT_TRUE(was_told(word)) << word;
  }
  EXPECT_TRUE(has(read_file(words()), "layout={dp: 1, shard: 4, zero: 1}"));
  const std::vector<std::string> environment = split(trim(read_file(home())), ' ');
  EXPECT_EQ(environment.at(1), "spread");
  EXPECT_FALSE(fs::exists(environment.at(0)));
  EXPECT_EQ(engine->devices(knobs_->space().default_config()), 2);
}

TEST_F(EngineTrial, exit_codes_say_why_it_failed) {
  EXPECT_EQ(measure(*evaluator("echo 'lockstep: layout dp=3 needs 3 ranks' >&2; exit 2\n")).outcome, Outcome::kInvalid);
  const Measurement large = measure(*evaluator("echo 'lockstep: plan dp=4 needs 20 GiB' >&2; exit 3\n"));
  EXPECT_EQ(large.outcome, Outcome::kOutOfMemory);
  EXPECT_TRUE(has(large.message, "20 GiB"));
  EXPECT_EQ(measure(*evaluator("kill -9 $$\n")).outcome, Outcome::kOutOfMemory);
  EXPECT_EQ(measure(*evaluator("echo 'lockstep: rank 1 lost' >&2; exit 1\n")).outcome, Outcome::kCrash);
}

TEST_F(EngineTrial, racing_and_the_budget_end_it_and_what_was_measured_counts) {
  const std::string endless = "while true; do echo '{\"step\":1,\"tokens_per_second\":50}'; sleep 0.05; done\n";
  keep_going_ = [](std::span<const double> samples) { return samples.size() < 4; };
  const Measurement raced = measure(*evaluator(endless));
  EXPECT_TRUE(raced.stopped_early);
  EXPECT_GE(raced.samples.size(), 4u);
  keep_going_ = {};
  const Measurement cut = measure(*evaluator(endless), 3);
  EXPECT_EQ(cut.outcome, Outcome::kMeasured);
  EXPECT_FALSE(cut.samples.empty());
}

TEST_F(EngineTrial, silence_is_a_hang) {
  EngineOptions options;
  options.hang_seconds = 0.5;
  const Measurement measurement = measure(*evaluator("sleep 100000\n", options));
  EXPECT_EQ(measurement.outcome, Outcome::kHang);
}

}  // namespace
}  // namespace lockstep::tune
