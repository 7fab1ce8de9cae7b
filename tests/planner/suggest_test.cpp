// `lockstep suggest` as a function: it agrees with the planner, respects the data, refuses nonsense, learns from
// studies.
#include "lockstep/planner/suggest/suggest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/planner/explain/explain.h"
#include "lockstep/planner/suggest/files.h"
#include "lockstep/planner/suggest/model.h"
#include "lockstep/planner/suggest/studies.h"
#include "lockstep/spec/job.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/study_store.h"

namespace lockstep::planner {
namespace {

SuggestRequest ask(double parameters, std::int64_t gpus, double tokens, const std::string& gpu = "H100") {
  SuggestRequest request;
  request.parameters = parameters;
  request.gpus = gpus;
  request.dataset_tokens = tokens;
  request.gpu = gpu;
  return request;
}

Explained planner_says(const Suggestion& suggestion) {
  SearchRequest request;
  request.model = suggestion.model;
  request.cluster = suggestion.cluster;
  request.profile = cost::engine_profile_for(suggestion.cluster);
  request.global_sequences = suggestion.candidate.batch.global_sequences;
  request.sequence_length = suggestion.candidate.batch.sequence_length;
  request.tokens = suggestion.tokens;
  return explain(request, {.what_ifs = false});
}

const EnvironmentVariable& variable(const Suggestion& suggestion, const std::string& name) {
  const auto found = std::find_if(suggestion.environment.begin(), suggestion.environment.end(),
                                  [&](const EnvironmentVariable& entry) { return entry.name == name; });
  EXPECT_NE(found, suggestion.environment.end()) << name;
  return *found;
}

TEST(Suggest, AgreesWithThePlannerToTheLastBitWhereTheSearchIsComplete) {
  for (const SuggestRequest& request : {ask(7e9, 8, 1e9), ask(13e9, 8, 1e9, "A100"), ask(1.1e9, 4, 30e9, "A100"),
                                        ask(124e6, 8, 10e9), ask(8e9, 16, 5e7, "H200"), ask(1.1e9, 1, 1e9, "H200")}) {
    const Suggestion suggestion = suggest(request);
    if (request.gpus <= 8) {
      EXPECT_TRUE(suggestion.complete_search) << suggestion.model.name;
    }
    const plan::Candidate plan = planner_says(suggestion).plan.best;
    EXPECT_EQ(suggestion.candidate.batch.sequence_length, std::min<std::int64_t>(suggestion.model.max_sequence, 4096));
    if (!suggestion.complete_search) continue;
    EXPECT_EQ(suggestion.candidate.layout, plan.layout);
    EXPECT_EQ(suggestion.candidate.batch, plan.batch);
    EXPECT_EQ(suggestion.candidate.memory, plan.memory);
    EXPECT_EQ(suggestion.candidate.prediction, plan.prediction);
    EXPECT_EQ(suggestion.candidate.cost, plan.cost);
    EXPECT_EQ(suggestion.candidate.checkpoint, plan.checkpoint);
  }
}

TEST(Suggest, OneGpuTakesTheProfileOfTheEngineThereAndOtherStacksTheGenericOne) {
  SuggestRequest request = ask(1.1e9, 1, 1e9, "H200");
  EXPECT_EQ(suggest(request).profile, cost::find_profile("H200-lockstep").identity());
  request.stack = Stack::kDeepspeed;
  EXPECT_EQ(suggest(request).profile, cost::profile_for("H200").identity());
  request = ask(1.1e9, 8, 1e9, "H200");  // one GPU says nothing about links
  EXPECT_EQ(suggest(request).profile, cost::profile_for("H200").identity());
}

TEST(Suggest, LosesLittleWhereItSearchesInStages) {
  for (const SuggestRequest& request : {ask(70e9, 512, 2e12), ask(7e9, 64, 1e12), ask(30e9, 128, 1e11, "A100")}) {
    const Suggestion suggestion = suggest(request);
    EXPECT_FALSE(suggestion.complete_search);
    const double best = planner_says(suggestion).plan.best.prediction->tokens_per_second.expected;
    const double found = suggestion.candidate.prediction->tokens_per_second.expected;
    EXPECT_GT(found, 0.97 * best) << suggestion.model.name;
    const bool said = std::any_of(suggestion.reasons.begin(), suggestion.reasons.end(), [](const std::string& reason) {
      return reason.find("in stages") != std::string::npos;
    });
    EXPECT_TRUE(said);
  }
}

TEST(Suggest, TakesABatchThatLeavesTheDatasetEnoughSteps) {
  for (const double tokens : {3e6, 3e7, 1e9, 1e11}) {
    const Suggestion suggestion = suggest(ask(7e9, 8, tokens));
    EXPECT_GE(suggestion.steps, 100) << tokens;
    const plan::BatchPlan& batch = suggestion.candidate.batch;
    EXPECT_EQ(batch.micro * batch.accumulation * suggestion.candidate.layout.data_ranks(), batch.global_sequences);
    EXPECT_NEAR(static_cast<double>(suggestion.steps * batch.global_sequences * batch.sequence_length),
                tokens * suggestion.epochs, static_cast<double>(batch.global_sequences * batch.sequence_length));
  }
  EXPECT_EQ(suggest(ask(7e9, 8, 1e7)).epochs, 3);
  EXPECT_EQ(suggest(ask(7e9, 8, 1e9)).epochs, 1);
  EXPECT_EQ(suggest(ask(7e9, 8, 1e9)).task, Task::kFinetune);
  EXPECT_EQ(suggest(ask(124e6, 8, 1e10)).task, Task::kPretrain);
}

TEST(Suggest, WarnsOfASetThatIsTooSmallForTheGpus) {
  SuggestRequest request = ask(7e9, 64, 1e6);
  request.stack = Stack::kTorchrun;  // every rank needs a sequence
  const Suggestion suggestion = suggest(request);
  EXPECT_GE(suggestion.candidate.batch.global_sequences, 64);
  ASSERT_FALSE(suggestion.warnings.empty());
  EXPECT_NE(suggestion.warnings.front().find("steps only"), std::string::npos) << suggestion.warnings.front();
}

TEST(Suggest, GivesReasonsForEveryVariableAndSetsNoneOfNcclByItself) {
  const Suggestion suggestion = suggest(ask(7e9, 16, 1e9));
  for (const char* name : {"NCCL_ALGO", "NCCL_PROTO", "NCCL_NTHREADS", "NCCL_BUFFSIZE", "NCCL_SOCKET_IFNAME"}) {
    EXPECT_EQ(variable(suggestion, name).value, "auto") << name;
  }
  for (const EnvironmentVariable& entry : suggestion.environment) EXPECT_FALSE(entry.reason.empty()) << entry.name;
  EXPECT_GE(std::stoi(variable(suggestion, "OMP_NUM_THREADS").value), 1);
}

TEST(Suggest, GivesTheLoaderMoreWorkersWhereTheModelIsFaster) {
  SuggestRequest slow = ask(7e9, 8, 1e9), fast = ask(124e6, 8, 1e9);
  EXPECT_LT(suggest(slow).loader.num_workers, suggest(fast).loader.num_workers);
  fast.host_cores = 16;  // two per GPU
  EXPECT_EQ(suggest(fast).loader.num_workers, 1);
}

TEST(Suggest, RefusesNonsenseInOneLine) {
  struct Case {
    SuggestRequest request;
    const char* says;
  };
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  std::vector<Case> cases{{ask(-1, 8, 1e9), "parameters"},
                          {ask(nan, 8, 1e9), "parameters"},
                          {ask(infinity, 8, 1e9), "parameters"},
                          {ask(1e30, 8, 1e9), "1M to 10T"},
                          {ask(10, 8, 1e9), "1M to 10T"},
                          {ask(7e9, 0, 1e9), "0 GPUs"},
                          {ask(7e9, -8, 1e9), "-8 GPUs"},
                          {ask(7e9, 1LL << 40, 1e9), "GPUs"},
                          {ask(7e9, 8, 0), "0 tokens"},
                          {ask(7e9, 8, -5), "-5 tokens"},
                          {ask(7e9, 8, nan), "tokens"},
                          {ask(7e9, 8, 100), "shorter than one sequence"},
                          {ask(7e9, 8, 1e9, "H1000"), "`H100`?"},
                          {ask(7e9, 8, 1e9, "cpu"), "lockstep plan"},
                          {ask(0, 8, 1e9), "--params"}};
  for (const Case& wrong : cases) {
    try {
      suggest(wrong.request);
      ADD_FAILURE() << "was answered: " << wrong.says;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage) << error.what();
      EXPECT_NE(std::string(error.what()).find(wrong.says), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
  for (const char* text : {"", "nan", "-7B", "0", "1e30", "seven", "7B7", "tokens"}) {
    EXPECT_THROW(parse_size(text, "--params"), UserError) << text;
  }
  EXPECT_EQ(parse_size("7B", ""), 7e9);
  EXPECT_EQ(parse_size(" 1.5b parameters", ""), 1.5e9);
  EXPECT_EQ(parse_size("1B tokens", ""), 1e9);
  EXPECT_EQ(parse_size("7e9", ""), 7e9);
}

TEST(Suggest, SaysHowManyGpusHoldWhatDoesNotFit) {
  for (const Stack stack : {Stack::kLockstep, Stack::kDeepspeed}) {
    SuggestRequest request = ask(70e9, 1, 1e9);
    request.stack = stack;
    try {
      suggest(request);
      FAIL() << "70B were put on one GPU";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kAnswerIsNo);
      // "...; 16 H100 hold it, or train adapters"
      const std::string fix = error.fix();
      const std::int64_t enough = std::stoll(fix);
      EXPECT_NE(fix.find("H100 hold it"), std::string::npos) << fix;
      request.gpus = enough;
      const Suggestion larger = suggest(request);
      EXPECT_EQ(larger.candidate.layout.offload, plan::Offload::kNone) << enough;
      EXPECT_GE(enough, 8);
    }
  }
}

TEST(Suggest, AdaptersNeedLessMemoryThanAllWeights) {
  SuggestRequest request = ask(70e9, 8, 1e8);
  const Suggestion full = suggest(request);
  EXPECT_NE(full.candidate.layout.offload, plan::Offload::kNone);
  EXPECT_FALSE(full.warnings.empty());
  request.task = Task::kLora;
  const Suggestion lora = suggest(request);
  EXPECT_EQ(lora.candidate.layout.offload, plan::Offload::kNone);
  EXPECT_LT(lora.candidate.memory.optimizer, 0.01 * lora.candidate.memory.parameters);
  EXPECT_EQ(lora.lora.rank, 16);
}

TEST(Suggest, EachStackGetsALayoutItCanRun) {
  for (const std::int64_t gpus : {1, 8, 64}) {
    for (const double size : {1.1e9, 7e9}) {
      for (const Stack stack : {Stack::kTorchrun, Stack::kDeepspeed, Stack::kAccelerate}) {
        SuggestRequest request = ask(size, gpus, 1e9, "H200");
        request.stack = stack;
        const plan::Layout layout = suggest(request).candidate.layout;
        EXPECT_EQ(layout.pp * layout.tp * layout.cp * layout.ep, 1) << plan::to_string(layout);
        EXPECT_EQ(layout.world(), gpus);
        EXPECT_NE(layout.recompute, plan::Recompute::kSelective);
        if (stack == Stack::kDeepspeed) {
          EXPECT_TRUE(layout.dp == 1 || layout.zero == 0) << plan::to_string(layout);
        } else {
          EXPECT_NE(layout.zero, 1) << plan::to_string(layout);
        }
      }
    }
  }
}

TEST(SuggestModel, HasTheSizeThatWasAskedFor) {
  double before = 0;
  for (double size = 2e6; size < 9e12; size *= 1.37) {
    const SizedModel sized = model_of_size(size);
    const auto count = static_cast<double>(spec::parameter_count(sized.model));
    EXPECT_NEAR(count / size, 1, sized.interpolated ? 0.02 : 0.07) << sized.reason;
    EXPECT_EQ(sized.model.heads % sized.model.kv_heads, 0);
    EXPECT_FALSE(sized.reason.empty());
    before = count;
  }
  EXPECT_GT(before, 1e12);
  EXPECT_EQ(model_of_size(7e9).model.name, "llama2-7b");
  EXPECT_EQ(model_of_size(70e9).model.name, "llama2-70b");
  EXPECT_TRUE(model_of_size(30e9).interpolated);
}

TEST(SuggestFiles, TheJobFileIsTheSuggestionAndThePlannerPricesItAlike) {
  std::vector<SuggestRequest> requests{ask(7e9, 8, 1e9), ask(30e9, 64, 1e9), ask(70e9, 512, 2e12), ask(7e9, 8, 1e7)};
  requests.back().task = Task::kLora;
  for (const SuggestRequest& request : requests) {
    const Suggestion suggestion = suggest(request);
    const spec::Job job = spec::parse_job(job_yaml(suggestion), "suggested");
    EXPECT_EQ(plan::layout_from_request(*job.layout, job.precision), suggestion.candidate.layout);
    EXPECT_EQ(job.batch.micro, suggestion.candidate.batch.micro);
    EXPECT_EQ(job.batch.accumulation, suggestion.candidate.batch.accumulation);
    EXPECT_EQ(job.model, suggestion.model);
    EXPECT_EQ(job.cluster, suggestion.cluster);
    EXPECT_EQ(job.loader.num_workers, suggestion.loader.num_workers);
    EXPECT_EQ(static_cast<double>(job.tokens), suggestion.tokens);
    EXPECT_EQ(job.lora, suggestion.lora);
  }
}

TEST(SuggestFiles, DeepspeedsBatchIsMicroTimesAccumulationTimesRanks) {
  const auto config = deepspeed_config(suggest(ask(13e9, 16, 1e9, "A100")));
  EXPECT_EQ(config.at("train_batch_size").get<int>(), config.at("train_micro_batch_size_per_gpu").get<int>() *
                                                          config.at("gradient_accumulation_steps").get<int>() * 16);
  EXPECT_TRUE(config.at("bf16").at("enabled").get<bool>());
  EXPECT_GE(config.at("zero_optimization").at("stage").get<int>(), 1);
}

TEST(Suggest, SaysWhatAStackDoesNotDoByItself) {
  const auto warns = [](Stack stack, double parameters, std::int64_t gpus, const char* of) {
    SuggestRequest request = ask(parameters, gpus, 1e9, "A100");
    request.stack = stack;
    const Suggestion suggestion = suggest(request);
    const bool said = std::any_of(suggestion.warnings.begin(), suggestion.warnings.end(),
                                  [&](const auto& warning) { return warning.find(of) != std::string::npos; });
    const bool recomputes = suggestion.candidate.layout.recompute != plan::Recompute::kNone;
    const bool accumulates = suggestion.candidate.layout.zero > 0 && suggestion.candidate.batch.accumulation > 1;
    return std::pair(said, stack == Stack::kDeepspeed ? recomputes : accumulates);
  };
  bool seen = false;
  for (const double parameters : {7e9, 13e9, 30e9}) {
    for (const Stack stack : {Stack::kTorchrun, Stack::kAccelerate, Stack::kDeepspeed, Stack::kLockstep}) {
      const char* of = stack == Stack::kDeepspeed ? "gradient_checkpointing_enable" : "sync_each_batch";
      const auto [said, wanted] = warns(stack, parameters, 16, of);
      EXPECT_EQ(said, wanted && stack != Stack::kLockstep) << to_string(stack) << " " << parameters;
      seen = seen || said;
    }
  }
  EXPECT_TRUE(seen);
}

TEST(SuggestFiles, ANameSaysWhatToWrite) {
  EXPECT_EQ(file_kind_of("job.yaml"), SuggestionFile::kJob);
  EXPECT_EQ(file_kind_of("a/run.sh"), SuggestionFile::kTorchrun);
  EXPECT_EQ(file_kind_of("ds.json"), SuggestionFile::kDeepspeed);
  EXPECT_EQ(file_kind_of("my_accelerate.yml"), SuggestionFile::kAccelerate);
  EXPECT_THROW(file_kind_of("out.txt"), UserError);
}

// A finished study of 7B on eight H100 in which NCCL_ALGO and num_workers mattered and NCCL_PROTO did not.
class StudiesOfTheStore : public testing::Test {
 protected:
  void record(const nlohmann::json& about, const nlohmann::json& config, telemetry::RunStatus status,
              const std::string& kind = "worker") {
    const auto store = telemetry::open_study_store(folder_.path());
    telemetry::StudyInfo info;
    info.name = "7b";
    info.options = {{"about", about}, {"evaluator", {{"kind", kind}}}};
    const std::string id = store->create(info);
    const auto cost = [](double value, double low, double high) {
      return nlohmann::json{{"value", value}, {"low", low}, {"high", high}};
    };
    store->release(id, status,
                   {{"schema", "lockstep.study/1"},
                    {"best", {{"config", config}, {"estimate", 1.0}, {"low", 0.9}, {"high", 1.1}}},
                    {"importance",
                     {{{"knob", "NCCL_ALGO"}, {"set_back_percent", cost(6.5, 4.0, 9.0)}},
                      {{"knob", "num_workers"}, {"set_back_percent", cost(3.0, 1.0, 5.0)}},
                      {{"knob", "NCCL_PROTO"}, {"set_back_percent", cost(0.4, -1.0, 2.0)}}}}});
  }
  Suggestion suggestion(std::int64_t gpus = 8, double parameters = 7e9) {
    SuggestRequest request = ask(parameters, gpus, 1e9);
    request.home = folder_.path();
    return suggest(request);
  }
  nlohmann::json config_ = {{"NCCL_ALGO", "Tree"}, {"NCCL_PROTO", "LL"}, {"num_workers", 5}};
  TemporaryFolder folder_;
};

TEST_F(StudiesOfTheStore, LendTheKnobsThatMatteredToAJobAlike) {
  record({{"parameters", 6.7e9}, {"gpu", "H100"}, {"gpus", 8}}, config_, telemetry::RunStatus::kDone);
  const Suggestion informed = suggestion();
  ASSERT_EQ(informed.studied.size(), 2u);
  EXPECT_EQ(variable(informed, "NCCL_ALGO").value, "Tree");
  EXPECT_NE(variable(informed, "NCCL_ALGO").reason.find("4.0 to 9.0"), std::string::npos);
  EXPECT_EQ(variable(informed, "NCCL_PROTO").value, "auto");
  EXPECT_EQ(informed.loader.num_workers, 5);
  EXPECT_EQ(informed.studied.front().low, 4.0);
  const bool said = std::any_of(informed.reasons.begin(), informed.reasons.end(), [&](const std::string& reason) {
    return reason.find(informed.studied.front().study) != std::string::npos;
  });
  EXPECT_TRUE(said) << "no reason names the study";
}

TEST_F(StudiesOfTheStore, SayNothingAboutOtherGpusOtherSizesOrWhenUnfinished) {
  record({{"parameters", 6.7e9}, {"gpu", "H100"}, {"gpus", 8}}, config_, telemetry::RunStatus::kInterrupted);
  record({{"parameters", 6.7e9}, {"gpu", "A100"}, {"gpus", 8}}, config_, telemetry::RunStatus::kDone);
  record({{"parameters", 30e9}, {"gpu", "H100"}, {"gpus", 8}}, config_, telemetry::RunStatus::kDone);
  record({{"parameters", "7B"}, {"gpu", 5}}, config_, telemetry::RunStatus::kDone);
  EXPECT_TRUE(suggestion().studied.empty());
  record({{"parameters", 6.7e9}, {"gpu", "H100"}, {"gpus", 8}}, config_, telemetry::RunStatus::kDone);
  EXPECT_TRUE(suggestion(16).studied.empty());
  EXPECT_FALSE(suggestion(8).studied.empty());
}

TEST_F(StudiesOfTheStore, SayNothingWhenTheyOnlySimulated) {
  const nlohmann::json about = {{"parameters", 6.7e9}, {"gpu", "H100"}, {"gpus", 8}};
  record(about, config_, telemetry::RunStatus::kDone, "simulate");
  EXPECT_TRUE(suggestion().studied.empty());
  record(about, config_, telemetry::RunStatus::kDone, "command");
  EXPECT_FALSE(suggestion().studied.empty());
}

TEST_F(StudiesOfTheStore, SayNothingAboutOtherSequencesOrAdapters) {
  const std::int64_t length = suggestion().candidate.batch.sequence_length;
  nlohmann::json about = {{"parameters", 6.7e9}, {"gpu", "H100"}, {"gpus", 8}, {"sequence_length", length / 2}};
  record(about, config_, telemetry::RunStatus::kDone);
  EXPECT_TRUE(suggestion().studied.empty());
  about["sequence_length"] = length;
  about["adapters"] = suggestion().lora.rank == 0;
  record(about, config_, telemetry::RunStatus::kDone);
  EXPECT_TRUE(suggestion().studied.empty());
  about["adapters"] = suggestion().lora.rank > 0;
  record(about, config_, telemetry::RunStatus::kDone);
  EXPECT_FALSE(suggestion().studied.empty());
}

TEST_F(StudiesOfTheStore, AreKnownByTheirJobToo) {
  const nlohmann::json options = {{"evaluator", {{"kind", "simulate"}, {"job", "7b-instruct"}}}};
  const auto job = studied_job(options);
  ASSERT_TRUE(job.has_value());
  EXPECT_EQ(job->gpu, "H100");
  EXPECT_EQ(job->gpus, 8);
  EXPECT_NEAR(job->parameters, 6.74e9, 1e7);
  EXPECT_GT(job->sequence_length, 0);
  EXPECT_TRUE(job->adapters.has_value());
}

TEST_F(StudiesOfTheStore, CannotSmuggleACommandIntoAScript) {
  config_["NCCL_ALGO"] = "Ring'; touch /tmp/owned; '";
  record({{"parameters", 6.7e9}, {"gpu", "H100"}, {"gpus", 8}}, config_, telemetry::RunStatus::kDone);
  const std::string script = torchrun_script(suggestion());
  EXPECT_NE(script.find(R"(NCCL_ALGO='Ring'\''; touch /tmp/owned; '\''')"), std::string::npos) << script;
}

TEST_F(StudiesOfTheStore, AreNotNeeded) {
  EXPECT_TRUE(suggestion().studied.empty());
  EXPECT_FALSE(std::filesystem::exists(telemetry::store_file(folder_.path()))) << "asking made a store";
}

}  // namespace
}  // namespace lockstep::planner
