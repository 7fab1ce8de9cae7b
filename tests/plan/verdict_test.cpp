#include "lockstep/plan/verdict.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "lockstep/base/error.h"

namespace lockstep::plan {
namespace {

spec::Job job_of(const std::string& model, const std::string& cluster) {
  spec::Job job;
  job.model = spec::load_model(model);
  job.cluster = spec::load_cluster(cluster);
  job.precision = job.cluster.is_cpu() ? spec::Precision::kFp32 : spec::Precision::kBf16;
  job.batch = {.micro = 2, .accumulation = 3, .sequence_length = 512};
  return job;
}

// What a Layout may be although parse_layout() refuses it by itself.
Layout layout_of(const std::string& text, const spec::Job& job) {
  Layout layout = parse_layout(text);
  layout.precision = job.precision;
  return layout;
}

std::string refusal_of(const spec::Job& job, const std::string& layout) {
  const auto problem = first_refusal(run_of(job, layout_of(layout, job)));
  return problem ? problem->key + ": " + problem->text + "; " + problem->fix : "";
}

std::vector<std::string> warnings_of(const spec::Job& job, const std::string& layout) {
  std::vector<std::string> keys;
  for (const Problem& problem : problems(run_of(job, layout_of(layout, job)))) {
    EXPECT_EQ(problem.severity, Severity::kWarning) << problem.text;
    keys.push_back(problem.key);
  }
  return keys;
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

// --- Layouts
TEST(Verdict, is_empty_where_a_run_trains) {
  EXPECT_TRUE(problems(run_of(job_of("gpt2-124m", "1x4xcpu"), parse_layout("dp=2,tp=2"))).empty());
}

TEST(Verdict, a_layout_that_does_not_add_up_comes_with_the_nearest_that_does) {
  const spec::Job job = job_of("gpt2-124m", "1x4xcpu");
  Layout layout;
  layout.tp = 5;
  const auto problem = first_refusal(run_of(job, layout));
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->text, "layout: tp=5 does not divide the 12 heads of gpt2-124m");
  EXPECT_EQ(problem->fix, "nearest that works: tp=4");
  EXPECT_EQ(refusal_of(job, "dp=3"), "layout: layout: dp=3 has 3 ranks, the run has 4; nearest that works: dp=4");
}

TEST(Verdict, layouts_of_job_files_are_refused_with_the_nearest_that_works) {
  const auto said = [](const std::string& layout) -> std::string {
    const spec::Job job = spec::parse_job(
        "model: gpt2-124m\ncluster: 1x4xcpu\ndata: {kind: text, path: d}\n"
        "steps: 1\nlayout: " +
            layout,
        "j.yaml");
    const auto problem = first_refusal(run_of(job, plan::layout_of(job)));
    return problem ? problem->text + "; " + problem->fix : "";
  };
  EXPECT_EQ(said("{dp: 3}"), "layout: dp=3 has 3 ranks, the run has 4; nearest that works: dp=4");
  EXPECT_EQ(said("{pp: 2, dp: 4}"), "layout: pp=2,dp=4 has 8 ranks, the run has 4; nearest that works: pp=2,dp=2");
  EXPECT_EQ(said("{dp: 16777216, pp: 16777216, cp: 16777216, tp: 16777216}").substr(0, 24), "layout: pp=16777216 is o");
  EXPECT_EQ(said("{dp: 4, ep: 3}"), "layout: ep=3 does not divide dp x shard x cp = 4; nearest that works: dp=4");
  EXPECT_EQ(said("{shard: 4, zero: 0}"),
            "layout: shard=4 shards nothing with zero=0; set zero to 1, 2 or 3, or use dp=4 and shard=1; nearest that "
            "works: shard=4,zero=1");
  EXPECT_EQ(said("{pp: 4, stage_layers: [3, 3, 3, 2]}"),
            "layout: stage_layers places 11 layers, gpt2-124m has 12; nearest that works: pp=4");
  EXPECT_EQ(said("{pp: 4, stage_layers: [3, 3, 3, 9223372036854775807]}").substr(0, 20), "layout: stage_layers");
  EXPECT_EQ(said("{pp: 4, stage_layers: [3, 3, 3, 3]}"), "");
}

TEST(Verdict, the_nearest_layout_is_one_that_trains) {
  spec::Job job = job_of("gpt2-124m", "1x4xcpu");
  job.batch.sequence_length = 510;  // no pieces of cp=2: a ring wants four
  const auto problem = first_refusal(run_of(job, parse_layout("cp=2,dp=3")));
  ASSERT_TRUE(problem);
  const std::string offered = problem->fix.substr(problem->fix.find(": ") + 2);
  EXPECT_EQ(refusal_of(job, offered), "") << offered;
}

TEST(Verdict, a_ring_of_context_ranks_holds_two_pieces_each) {
  spec::Job job = job_of("llama3-8b", "1x4xH100");
  job.batch.sequence_length = 1020;
  const std::string refusal = refusal_of(job, "cp=4");
  expect_part(refusal, "layout.cp: a sequence of 1020 tokens does not divide into the 8 pieces");
  expect_part(refusal, "a multiple of 8, such as 1016");
  EXPECT_EQ(refusal_of(job, "cp=4,context_exchange=all_to_all"), "") << "whole heads want one piece each";
  job.batch.sequence_length = 1024 + 8;
  EXPECT_EQ(refusal_of(job, "cp=4"), "");
}

TEST(Verdict, sequence_parallel_ranks_hold_equal_pieces) {
  spec::Job job = job_of("gpt2-124m", "1x2xcpu");
  job.batch.sequence_length = 511;
  expect_part(refusal_of(job, "tp=2,sequence_parallel=true"), "into the 2 pieces");
  EXPECT_EQ(refusal_of(job, "tp=2"), "");
}

TEST(Verdict, interleaving_runs_any_number_of_micro_batches) {
  spec::Job job = job_of("gpt2-124m", "1x2xcpu");
  job.batch.accumulation = 3;
  EXPECT_EQ(refusal_of(job, "pp=2,virtual_stages=2,schedule=interleaved"), "");
}

TEST(Verdict, weights_in_host_memory_are_shards) {
  const spec::Job job = job_of("gpt2-124m", "1x2xcpu");
  EXPECT_EQ(refusal_of(job, "shard=2,zero=3,offload=parameters"), "");
  expect_part(refusal_of(job, "shard=2,zero=1,offload=parameters"), "layout.offload: ");
  expect_part(refusal_of(job, "dp=2,offload=parameters"), "needs zero=3, not zero=0");
}

TEST(Verdict, image_models_are_divided_by_their_batch_alone) {
  const spec::Job job = job_of("resnet18", "1x2xcpu");
  for (const char* layout : {"dp=2", "shard=2,zero=1", "shard=2,zero=3"})
    EXPECT_EQ(refusal_of(job, layout), "") << layout;
  for (const char* layout : {"tp=2", "pp=2", "cp=2"}) EXPECT_NE(refusal_of(job, layout), "") << layout;
}

TEST(Verdict, a_classifier_has_no_context_ranks) {
  spec::Job job = job_of("gpt2-124m", "1x2xcpu");
  job.model.classes = 2;
  expect_part(refusal_of(job, "cp=2"), "classifies by one token");
}

// --- Communication
TEST(Verdict, compression_wants_whole_gradients) {
  spec::Job job = job_of("gpt2-124m", "1x2xcpu");
  job.communication.compression = spec::Compression::kPowerSgd;
  EXPECT_EQ(refusal_of(job, "dp=2"), "");
  EXPECT_EQ(refusal_of(job, "dp=2,recompute=full"), "");
  for (const char* layout : {"shard=2,zero=1", "shard=2", "cp=2,zero=2"}) {
    expect_part(refusal_of(job, layout), "communication.compression powersgd works where gradients are whole: zero=0");
  }
}

TEST(Verdict, compression_without_anything_to_exchange_is_worth_a_word) {
  spec::Job job = job_of("gpt2-124m", "1x2xcpu");
  job.communication.compression = spec::Compression::kFp16;
  EXPECT_EQ(warnings_of(job, "tp=2"), std::vector<std::string>{"communication.compression"});
  EXPECT_TRUE(warnings_of(job, "dp=2").empty());
  EXPECT_TRUE(warnings_of(job, "cp=2").empty()) << "context ranks share their gradients";
}

TEST(Verdict, one_bit_compression_is_for_processors) {
  spec::Job job = job_of("gpt2-124m", "1x2xH100");
  job.communication.compression = spec::Compression::kOneBit;
  expect_part(refusal_of(job, "dp=2"), "works on the CPU only");
}

TEST(Verdict, switches_that_change_nothing_are_worth_a_word) {
  spec::Job job = job_of("gpt2-124m", "1x2xcpu");
  job.communication.reduce_each_micro_step = true;
  job.communication.reshard_after_forward = false;
  job.activation_offload = true;
  EXPECT_EQ(warnings_of(job, "dp=2"),
            (std::vector<std::string>{"communication.reduce_each_micro_step", "communication.reshard_after_forward",
                                      "activation_offload"}));
  EXPECT_TRUE(warnings_of(job, "shard=2,zero=3,recompute=full").empty());
}

TEST(Verdict, an_empty_bucket_is_refused) {
  spec::Job job = job_of("gpt2-124m", "1x2xcpu");
  job.communication.bucket_mib = 0;
  expect_part(refusal_of(job, "dp=2"), "communication.bucket: ");
}

// --- Batch, model, devices
TEST(Verdict, a_batch_has_at_least_one_of_everything) {
  spec::Job job = job_of("gpt2-124m", "1x1xcpu");
  job.batch.micro = 0;
  expect_part(refusal_of(job, "dp=1"), "batch.micro is 0");
}

TEST(Verdict, sequences_are_no_longer_than_the_positions) {
  spec::Job job = job_of("tinyllama-1.1b", "1x1xcpu");
  job.batch.sequence_length = 4096;
  expect_part(refusal_of(job, "dp=1"), "sequence_length 4096 is longer than the 2048 positions");
}

TEST(Verdict, models_that_cannot_be_built_are_refused_before_anything_starts) {
  spec::Job job = job_of("tinyllama-1.1b", "1x1xcpu");
  job.model.decoder.rotary_fraction = 1.0 / 64;
  expect_part(refusal_of(job, "dp=1"), "RoPE rotates an even part of a head");
  job = job_of("gpt2-124m", "1x1xcpu");
  job.model.kv_heads = 4;
  expect_part(refusal_of(job, "dp=1"), "no grouped-query attention");
}

TEST(Verdict, a_run_is_on_processors_or_on_gpus) {
  spec::Job job = job_of("gpt2-124m", "1x1xH100");
  job.cluster.groups.push_back(spec::load_cluster("1x1xcpu").groups.front());
  expect_part(refusal_of(job, "dp=2"), "cluster: ");
}

// --- Executors
TEST(Verdict, fp8_is_the_fused_steps) {
  spec::Job job = job_of("tinyllama-1.1b", "1x1xH100");
  job.precision = spec::Precision::kFp8;
  EXPECT_EQ(refusal_of(job, "dp=1"), "");
  job.batch = {.micro = 1, .accumulation = 1, .sequence_length = 1000};
  expect_part(refusal_of(job, "dp=1"), "a size is not a multiple of 64");
  job = job_of("tinyllama-1.1b", "1x2xH100");
  job.precision = spec::Precision::kFp8;
  expect_part(refusal_of(job, "dp=2"), "precision fp8 is trained by the fused CUDA step alone: the layout has 2 ranks");
  job = job_of("tinyllama-1.1b", "1x1xA100");
  job.precision = spec::Precision::kFp8;
  expect_part(refusal_of(job, "dp=1"), "precision fp8: A100 has no fp8");
}

TEST(Verdict, narrow_states_are_the_fused_steps) {
  spec::Job job = job_of("gpt2-124m", "1x1xH100");
  job.optimizer.state_precision = spec::Precision::kBf16;
  expect_part(refusal_of(job, "dp=1"), "the model is not a dense Llama");
}

TEST(Verdict, the_general_step_does_not_train_what_is_the_fused_steps_alone) {
  spec::Job job = job_of("tinyllama-1.1b", "1x1xH100");
  job.precision = spec::Precision::kFp8;
  plan::Run run = run_of(job, layout_of("dp=1", job));
  EXPECT_EQ(run.executor, Executor::kFused);
  run.executor = Executor::kSharded;
  const auto problem = first_refusal(run);
  ASSERT_TRUE(problem);
  expect_part(problem->text, "the general step was asked for");
}

TEST(Executor, is_fused_for_a_dense_llama_on_one_gpu) {
  spec::Job job = job_of("tinyllama-1.1b", "1x1xH100");
  const auto why = [&] { return why_not_fused(run_of(job, layout_of("dp=1", job))).value_or(""); };
  EXPECT_EQ(why(), "");
  job.lora.rank = 8;
  EXPECT_EQ(why(), "the job trains LoRA adapters");
  job = job_of("tinyllama-1.1b", "1x1xcpu");
  EXPECT_EQ(why(), "the device is not a GPU");
  job = job_of("mixtral-8x7b", "1x1xH100");
  EXPECT_EQ(why(), "the model is not a dense Llama");
  job = job_of("tinyllama-1.1b", "1x1xH100");
  job.activation_offload = true;
  EXPECT_EQ(why(), "the job offloads to host memory");
}

TEST(Executor, is_the_general_one_for_llamas_relatives) {
  const std::pair<const char*, const char*> rows[] = {
      {"mistral-7b", "it has sliding windows"},       {"qwen2.5-7b", "its linear layers have biases"},
      {"qwen3-8b", "it normalises queries and keys"}, {"gemma2-9b", "it has sliding windows"},
      {"olmo2-7b", "it normalises queries and keys"}, {"neox-20b", "its linear layers have biases"},
      {"falcon-7b", "its norms are not Llama's"}};
  for (const auto& [preset, reason] : rows) {
    EXPECT_EQ(why_model_is_not_fused(spec::load_model(preset), spec::Precision::kBf16).value_or(""),
              std::string("the model is no plain Llama: ") + reason)
        << preset;
  }
}

// Each setting of the decoder by itself: none of them is computed by a step that knows Llama alone.
TEST(Executor, is_the_general_one_for_every_setting_beside_llamas) {
  const std::function<void(spec::Model&)> changes[] = {
      [](spec::Model& m) { m.bias = true; },
      [](spec::Model& m) { m.decoder.qkv_bias = true; },
      [](spec::Model& m) { m.decoder.attention_output_bias = true; },
      [](spec::Model& m) { m.decoder.norm = spec::NormKind::kLayerPlain; },
      [](spec::Model& m) { m.decoder.norm_plus_one = true; },
      [](spec::Model& m) { m.decoder.norm_place = spec::NormPlace::kAfter; },
      [](spec::Model& m) { m.decoder.parallel_block = spec::ParallelBlock::kOneNorm; },
      [](spec::Model& m) { m.decoder.gated_mlp = false; },
      [](spec::Model& m) { m.activation = spec::Activation::kGeluTanh; },
      [](spec::Model& m) { m.decoder.qk_norm = spec::QkNorm::kAll; },
      [](spec::Model& m) { m.decoder.clip_qkv = 8; },
      [](spec::Model& m) { m.decoder.score_dim = 144; },
      [](spec::Model& m) { m.decoder.attention_softcap = 50; },
      [](spec::Model& m) { m.decoder.logit_softcap = 30; },
      [](spec::Model& m) { m.decoder.sliding_window = 512; },
      [](spec::Model& m) { m.decoder.rotary_fraction = 0.5; },
      [](spec::Model& m) { m.decoder.scaled_embeddings = true; },
      [](spec::Model& m) { m.rope_scaling.kind = spec::RopeScaling::Kind::kYarn; },
      [](spec::Model& m) { m.rope_scaling.kind = spec::RopeScaling::Kind::kLongRope; }};
  const spec::Model llama = spec::load_model("tinyllama-1.1b");
  EXPECT_FALSE(why_model_is_not_fused(llama, spec::Precision::kBf16));
  for (std::size_t i = 0; i < std::size(changes); ++i) {
    spec::Model changed = llama;
    changes[i](changed);
    EXPECT_TRUE(why_model_is_not_fused(changed, spec::Precision::kBf16)) << i;
  }
}

TEST(Verdict, refusals_are_thrown_with_their_fix) {
  try {
    require_runnable(run_of(job_of("gpt2-124m", "1x4xcpu"), parse_layout("dp=2")));
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_STREQ(error.what(), "layout: dp=2 has 2 ranks, the run has 4; nearest that works: dp=4");
  }
}

TEST(Run, a_plan_wins_over_the_jobs_own_batch) {
  spec::Job job = job_of("gpt2-124m", "1x4xcpu");
  Candidate planned;
  planned.layout = parse_layout("dp=2,tp=2");
  planned.batch = {.micro = 4, .accumulation = 1, .global_sequences = 8, .sequence_length = 512};
  EXPECT_EQ(run_of(job, planned).batch, planned.batch);
  follow(job, planned);
  EXPECT_EQ(plan::layout_of(job), planned.layout);
  EXPECT_EQ(run_of(job, planned.layout), run_of(job, planned)) << "the job says the same by itself";
}

}  // namespace
}  // namespace lockstep::plan
