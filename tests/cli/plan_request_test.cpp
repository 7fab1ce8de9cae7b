#include "lockstep/cli/plan_request.h"

#include <gtest/gtest.h>

#include "lockstep/base/file.h"
#include "tests/base/expect_user_error.h"

namespace lockstep::cli {
namespace {

using lockstep::testing::user_error;
using Sizes = std::vector<std::int64_t>;

PlanFlags flags() {
  PlanFlags flags;
  flags.model = "llama2-13b";
  flags.cluster = "4x8xH100";
  return flags;
}

PlanFlags job_flags(const TemporaryFolder& folder, const std::string& cluster) {
  PlanFlags flags;
  flags.job_file = (folder.path() / "job.yaml").string();
  write_file_atomically(flags.job_file, "{model: gpt2-124m, cluster: " + cluster +
                                            ", data: {kind: text, path: corpus, tokenizer: bytes},\n"
                                            " batch: {micro: 4, accumulation: 2, sequence_length: 256}, steps: 100}\n");
  return flags;
}

TEST(PlanRequest, sizes_with_dots_go_on_by_factor_or_by_difference) {
  EXPECT_EQ(parse_sizes("8"), Sizes({8}));
  EXPECT_EQ(parse_sizes("8,16,...,128"), Sizes({8, 16, 32, 64, 128}));
  EXPECT_EQ(parse_sizes("16,24,...,48"), Sizes({16, 24, 32, 40, 48}));
  EXPECT_EQ(parse_sizes("64,8,32"), Sizes({8, 32, 64}));
  EXPECT_EQ(parse_sizes("8,16,...,100"), Sizes({8, 16, 32, 64, 100}));
}

TEST(PlanRequest, sizes_that_make_no_sense_are_refused) {
  for (const char* text : {"", "...", "8,...,64", "8,16,...", "16,8,...,64", "0,8", "eight", "1,2,...,1e15", "8,,16"}) {
    EXPECT_HAS(user_error([&] { parse_sizes(text); }), "--scaling") << text;
  }
}

TEST(PlanRequest, a_batch_is_in_sequences_unless_it_says_tokens) {
  EXPECT_EQ(parse_global_batch("1024", 4096), 1024);
  EXPECT_EQ(parse_global_batch("4Mtok", 4096), 1024);
  EXPECT_EQ(parse_global_batch("4M tokens", 4096), 1024);
  EXPECT_EQ(parse_global_batch("4194304 tokens", 4096), 1024);
  EXPECT_EQ(parse_global_batch("3.2M tokens", 2048), 1536);
  EXPECT_EQ(parse_global_batch("100 tok", 4096), 1);
  EXPECT_HAS(user_error([] { parse_global_batch("4Mtok", 0); }), "no tokens");
  EXPECT_HAS(user_error([] { parse_global_batch("0", 4096); }), "--global-batch");
  EXPECT_HAS(user_error([] { parse_global_batch("many", 4096); }), "--global-batch");
}

TEST(PlanRequest, a_deadline_needs_the_length_of_the_job) {
  PlanFlags asked = flags();
  asked.deadline = "14d";
  EXPECT_HAS(user_error([&] { request_of(asked); }), "--deadline: a deadline needs the length of the job");
  asked.tokens = "20B";
  EXPECT_EQ(request_of(asked).deadline_seconds, 14 * 86400);
}

TEST(PlanRequest, a_job_file_on_gpus_gives_tokens_and_the_usual_precision_and_says_what_it_does_not_keep) {
  const TemporaryFolder folder;
  const PlanFlags asked = job_flags(folder, "1x8xH100");
  const planner::SearchRequest request = request_of(asked);
  EXPECT_EQ(request.precisions, std::vector{spec::Precision::kBf16});
  EXPECT_EQ(request.global_sequences, 4 * 2 * 8);
  EXPECT_EQ(request.tokens, 100.0 * 64 * 256);
  plan::Candidate best;
  best.layout.dp = 8;
  best.batch = {.micro = 4, .accumulation = 2, .sequence_length = 256};
  EXPECT_TRUE(notices_of(asked, request, best).empty());
  best.batch = {.micro = 8, .accumulation = 1, .sequence_length = 256};
  const auto notices = notices_of(asked, request, best);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_HAS(notices[0], "micro-batch 4 x 2 of the job file");
}

TEST(PlanRequest, fp8_that_train_refuses_is_noticed_unless_the_profile_is_of_another_framework) {
  PlanFlags asked = flags();
  asked.precision = "fp8";
  plan::Candidate best;
  best.layout = plan::parse_layout("shard=32");
  best.batch.sequence_length = 4096;
  best.layout.precision = spec::Precision::kFp8;
  const auto notices = notices_of(asked, request_of(asked), best);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_HAS(notices[0], "precision fp8 is trained by the fused CUDA step alone: the layout has 32 ranks");
  asked.profile = "H100-nemo-25.05";
  EXPECT_TRUE(notices_of(asked, request_of(asked), best).empty());
  best.layout = {};
  best.layout.precision = spec::Precision::kFp8;
  asked.profile = "";
  best.batch.micro = 1;
  planner::SearchRequest request = request_of(asked);
  EXPECT_TRUE(notices_of(asked, request, best).empty()) << "one rank of it is trained";
  best.batch.sequence_length = 4080;
  EXPECT_HAS(notices_of(asked, request, best).at(0), "a size is not a multiple of 64");
}

TEST(PlanRequest, a_job_file_compared_on_other_devices_takes_their_precision) {
  const TemporaryFolder folder;
  PlanFlags asked = job_flags(folder, "1x8xH100");
  const planner::SearchRequest base = request_of(asked);
  EXPECT_EQ(request_on(base, "1x8xV100", asked).precisions, std::vector{spec::Precision::kFp16});
  asked.overrides = {"precision=fp32"};
  EXPECT_EQ(request_on(request_of(asked), "1x8xV100", asked).precisions, std::vector{spec::Precision::kFp32});
}

TEST(PlanRequest, with_tables_of_this_machine_the_micro_batch_of_the_job_file_is_kept) {
  const TemporaryFolder folder;
  cost::Profile measured;
  measured.matmuls = {{cost::MatmulKind::kForward, spec::Precision::kFp32, 64, 64, 64, 1e11, 0.01}};
  measured.memory_bytes_per_second = measured.optimizer_bytes_per_second = 1e10;
  measured.peak_flops = 2e11;
  PlanFlags asked = job_flags(folder, "1x2xcpu");
  asked.profile = (folder.path() / "here.json").string();
  cost::save_profile(measured, asked.profile);
  EXPECT_EQ(request_of(asked).constraints.fixed.at("micro"), 4);
  asked.micro = 2;
  EXPECT_EQ(request_of(asked).constraints.fixed.at("micro"), 2);
}

TEST(PlanRequest, a_sequence_at_or_above_the_models_maximum_is_noticed) {
  PlanFlags asked = flags();
  planner::SearchRequest request = request_of(asked);
  request.sequence_length = request.model.max_sequence;
  EXPECT_TRUE(notices_of(asked, request, {}).empty()) << "4096 is usual";
  request.sequence_length = request.model.max_sequence = 65536;
  ASSERT_EQ(notices_of(asked, request, {}).size(), 1u);
  EXPECT_HAS(notices_of(asked, request, {})[0], "sequence 65536: the model's maximum");
  asked.sequence_length = request.sequence_length;
  EXPECT_TRUE(notices_of(asked, request, {}).empty()) << "asked for";
  asked.sequence_length = request.sequence_length = 2 * 65536;
  EXPECT_HAS(notices_of(asked, request, {}).at(0), "longer than the model's maximum of 65536");
}

TEST(PlanRequest, constraints_are_read_by_key) {
  PlanFlags asked = flags();
  asked.fix = "tp=8,recompute=full,schedule=1f1b,sequence_parallel=true,offload=none";
  asked.at_most = "pp=4";
  asked.micro = 2;
  const planner::Constraints constraints = request_of(asked).constraints;
  EXPECT_EQ(constraints.fixed.at("tp"), 8);
  EXPECT_EQ(constraints.fixed.at("micro"), 2);
  EXPECT_EQ(constraints.at_most.at("pp"), 4);
  EXPECT_EQ(constraints.recompute, plan::Recompute::kFull);
  EXPECT_EQ(constraints.schedule, plan::Schedule::kOneForwardOneBackward);
  EXPECT_EQ(constraints.sequence_parallel, true);
  EXPECT_EQ(constraints.offload, plan::Offload::kNone);
}

TEST(PlanRequest, wrong_constraints_name_the_flag_and_the_nearest_key) {
  PlanFlags asked = flags();
  asked.fix = "recomputee=full";
  EXPECT_HAS(user_error([&] { request_of(asked); }), "--fix: unknown key `recomputee`; did you mean `recompute`?");
  asked.fix = "recompute=some";
  EXPECT_HAS(user_error([&] { request_of(asked); }), "none, selective, full");
  asked.fix = "tp";
  EXPECT_HAS(user_error([&] { request_of(asked); }), "not key=value");
  asked.fix = "";
  asked.at_most = "schedule=1f1b";
  EXPECT_HAS(user_error([&] { request_of(asked); }), "--at-most");
  asked.at_most = "";
  asked.precision = "bf16,int8";
  EXPECT_HAS(user_error([&] { request_of(asked); }), "--precision");
}

TEST(PlanRequest, a_layout_fixes_everything_and_must_agree_with_model_and_cluster) {
  PlanFlags asked = flags();
  asked.layout = "dp=4,shard=8,recompute=full";
  asked.micro = 2;
  const planner::SearchRequest request = request_of(asked);
  EXPECT_EQ(request.constraints.fixed.at("shard"), 8);
  EXPECT_EQ(request.constraints.fixed.at("micro"), 2);
  EXPECT_FALSE(request.constraints.allow_idle_devices);
  asked.layout = "dp=64";
  EXPECT_HAS(user_error([&] { request_of(asked); }),
             "--layout: dp=64 has 64 ranks, the run has 32; nearest that works: dp=32");
  asked.layout = "dp=4,tp=3";
  EXPECT_HAS(user_error([&] { request_of(asked); }), "--layout: tp=3 does not divide the 40 heads");
  asked.layout = "dp=4,shard=4";
  EXPECT_TRUE(request_of(asked).constraints.allow_idle_devices);
  asked.fix = "tp=1";
  EXPECT_HAS(user_error([&] { request_of(asked); }), "--layout");
}

TEST(PlanRequest, a_layout_that_train_refuses_is_refused) {
  PlanFlags asked = flags();
  asked.cluster = "1x4xH100";
  asked.sequence_length = 1020;
  asked.layout = "cp=4";
  EXPECT_HAS(user_error([&] { request_of(asked); }), "1020 tokens does not divide into the 8 pieces");
  asked.sequence_length = 1024;
  EXPECT_EQ(request_of(asked).constraints.fixed.at("cp"), 4);
}

TEST(PlanRequest, a_job_with_a_layout_asks_for_what_train_would_run) {
  const TemporaryFolder folder;
  PlanFlags asked = job_flags(folder, "1x8xH100");
  asked.overrides = {"layout.dp=2", "layout.tp=4"};
  const planner::SearchRequest request = request_of(asked);
  EXPECT_EQ(request.constraints.fixed.at("micro"), 4);
  EXPECT_EQ(request.global_sequences, 4 * 2 * 2);
  EXPECT_EQ(request.tokens, 100.0 * 16 * 256);
  EXPECT_TRUE(request.is_job);
}

TEST(PlanRequest, goals_are_read_with_their_units) {
  PlanFlags asked = flags();
  asked.tokens = "300B";
  asked.deadline = "14d";
  asked.max_lost = "20m";
  asked.objective = "deadline";
  asked.precision = "bf16,fp8";
  const planner::SearchRequest request = request_of(asked);
  EXPECT_EQ(request.tokens, 300e9);
  EXPECT_EQ(request.deadline_seconds, 14 * 86400.0);
  EXPECT_EQ(request.max_lost_seconds, 1200);
  EXPECT_EQ(request.objective, planner::Objective::kDeadline);
  EXPECT_EQ(request.precisions.size(), 2u);
  asked.deadline = "14";
  EXPECT_HAS(user_error([&] { request_of(asked); }), "--deadline");
}

TEST(PlanRequest, a_job_file_gives_model_cluster_and_batch_and_flags_win) {
  PlanFlags asked;
  asked.job_file = LOCKSTEP_SOURCE_DIR "/specs/jobs/gpt-10m.yaml";
  asked.overrides = {"batch.micro=8"};
  asked.cluster = "1x4xA100";
  const planner::SearchRequest request = request_of(asked);
  EXPECT_EQ(request.model.name, "gpt-10m");
  EXPECT_EQ(request.cluster.name, "1x4xA100");
  EXPECT_EQ(request.global_sequences, 8 * 4);
  EXPECT_EQ(request.sequence_length, 256);
}

TEST(PlanRequest, a_batch_given_on_the_command_line_is_kept_and_the_files_own_is_searched) {
  const TemporaryFolder folder;
  PlanFlags asked = job_flags(folder, "1x8xH100");
  EXPECT_FALSE(request_of(asked).constraints.fixed.contains("micro"));
  asked.overrides = {"batch.micro=512"};
  planner::SearchRequest request = request_of(asked);
  EXPECT_EQ(request.constraints.fixed.at("micro"), 512);
  EXPECT_FALSE(request.constraints.fixed.contains("accumulation"));
  EXPECT_EQ(request.global_sequences, 512 * 2 * 8);
  plan::Candidate best;
  best.batch = {.micro = 512, .accumulation = 4, .sequence_length = 256};
  EXPECT_TRUE(notices_of(asked, request, best).empty()) << "fewer data ranks, more accumulation";
  asked.overrides = {"batch.accumulation=16", "layout.dp=8"};
  request = request_of(asked);
  EXPECT_EQ(request.constraints.fixed.at("accumulation"), 16);
  EXPECT_EQ(request.constraints.fixed.at("dp"), 8);
  asked.micro = 2;
  asked.overrides = {"batch.micro=8"};
  EXPECT_EQ(request_of(asked).constraints.fixed.at("micro"), 2) << "the flag wins";
}

TEST(PlanRequest, parts_of_a_layout_beside_a_whole_one_are_refused_by_where_the_whole_one_is) {
  const TemporaryFolder folder;
  PlanFlags asked = job_flags(folder, "1x8xH100");
  asked.fix = "recompute=full";
  EXPECT_EQ(request_of(asked).constraints.recompute, plan::Recompute::kFull);
  asked.overrides = {"layout.dp=8"};
  EXPECT_HAS(user_error([&] { request_of(asked); }), "the job file names the whole layout");
  asked.layout = "dp=8";
  EXPECT_HAS(user_error([&] { request_of(asked); }), "--layout names the whole layout");
}

TEST(PlanRequest, a_machine_that_was_never_measured_is_told_to_calibrate) {
  PlanFlags asked = flags();
  asked.model = "gpt2-124m";
  asked.cluster = "1x3xcpu";
  EXPECT_HAS(user_error([&] { request_of(asked); }, ExitCode::kEnvironment),
             "lockstep calibrate --ranks 3 --backend tcp");
  asked.precision = "bf16";
  EXPECT_HAS(user_error([&] { request_of(asked); }, ExitCode::kEnvironment), " precision=bf16`");
}

TEST(PlanRequest, no_model_or_no_cluster_is_said) {
  EXPECT_HAS(user_error([] { request_of({}); }), "--model llama2-13b --cluster 4x8xH100");
}

}  // namespace
}  // namespace lockstep::cli
