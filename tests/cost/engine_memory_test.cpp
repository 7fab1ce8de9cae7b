// Expected figures are worked out by hand, never by the code under test.
#include "lockstep/cost/engine_memory.h"

#include <gtest/gtest.h>

#include "lockstep/base/units.h"
#include "lockstep/cost/adapters.h"
#include "lockstep/cost/states.h"
#include "tests/cost/tiny_run.h"

namespace lockstep::cost {
namespace {

double parameters(const std::string& layout, std::int64_t stage, spec::Model model = tiny_llama()) {
  return engine_memory(tiny_run(layout, std::move(model)), stage).parameters / 4;  // fp32
}

TEST(EngineMemory, holds_every_layer_and_both_ends_on_one_rank) {
  EXPECT_DOUBLE_EQ(parameters("dp=1", 0), 2 * kTinyTable + 4 * kTinyLayer);
  EXPECT_DOUBLE_EQ(parameters("tp=2", 0), (2 * kTinyTable + 4 * kTinyLayer) / 2);
}

TEST(EngineMemory, a_pipeline_has_the_embedding_first_and_the_head_last) {
  EXPECT_DOUBLE_EQ(parameters("pp=2", 0), kTinyTable + 2 * kTinyLayer);
  EXPECT_DOUBLE_EQ(parameters("pp=2", 1), kTinyTable + 2 * kTinyLayer);
}

TEST(EngineMemory, a_model_that_makes_a_v_begins_and_ends_on_the_first_rank) {
  const std::string v = "pp=2,schedule=zero_bubble,virtual_stages=2";
  EXPECT_DOUBLE_EQ(parameters(v, 0), 2 * kTinyTable + 2 * kTinyLayer);
  EXPECT_DOUBLE_EQ(parameters(v, 1), 2 * kTinyLayer);
  EXPECT_DOUBLE_EQ(engine_memory(tiny_run(v)).parameters, 4 * (2 * kTinyTable + 2 * kTinyLayer));
}

TEST(EngineMemory, tied_ends_are_one_table_on_one_rank_and_two_on_two) {
  spec::Model tied = tiny_llama();
  tied.tied_embeddings = true;
  EXPECT_DOUBLE_EQ(parameters("dp=1", 0, tied), kTinyTable + 4 * kTinyLayer);
  EXPECT_DOUBLE_EQ(parameters("pp=2", 1, tied), kTinyTable + 2 * kTinyLayer);
  EXPECT_DOUBLE_EQ(parameters("pp=2,schedule=zero_bubble,virtual_stages=2", 0, tied), kTinyTable + 2 * kTinyLayer);
}

TEST(EngineMemory, a_classifier_is_a_weight_of_its_own_beside_tied_embeddings) {
  spec::Model model = tiny_llama();
  model.arch = spec::Arch::kBert;
  model.tied_embeddings = true;
  const double plain = parameters("dp=1", 0, model) - static_cast<double>(spec::parameter_count(model));
  model.classes = 3;
  const double classifies = parameters("dp=1", 0, model) - static_cast<double>(spec::parameter_count(model));
  EXPECT_NEAR(plain, 0, 1);
  EXPECT_NEAR(classifies, 0, 1);
}

TEST(EngineMemory, uneven_stages_hold_their_own_layers) {
  EXPECT_DOUBLE_EQ(parameters("pp=2,stage_layers=1+3", 0), kTinyTable + kTinyLayer);
  EXPECT_DOUBLE_EQ(parameters("pp=2,stage_layers=1+3", 1), kTinyTable + 3 * kTinyLayer);
}

TEST(EngineMemory, zero_divides_optimizer_then_weights) {
  const double all = 2 * kTinyTable + 4 * kTinyLayer;
  EXPECT_DOUBLE_EQ(engine_memory(tiny_run("dp=4"), 0).optimizer, 8 * all);
  EXPECT_DOUBLE_EQ(engine_memory(tiny_run("shard=4,zero=1"), 0).optimizer, 8 * all / 4);
  EXPECT_DOUBLE_EQ(engine_memory(tiny_run("shard=4,zero=1"), 0).parameters, 4 * all);
  EXPECT_DOUBLE_EQ(engine_memory(tiny_run("shard=4,zero=3"), 0).parameters, 4 * all / 4);
}

TEST(EngineMemory, experts_are_divided_over_what_expert_parallelism_leaves) {
  spec::Model moe = tiny_llama();
  moe.arch = spec::Arch::kMoe;
  moe.experts = 4;
  moe.experts_per_token = 2;
  const double experts = 4 * 4 * 3 * 64 * 128;
  const double dense = static_cast<double>(spec::parameter_count(moe)) - experts;
  EXPECT_NEAR(engine_memory(tiny_run("shard=4,zero=1,ep=2", moe), 0).optimizer, 8 * (dense / 4 + experts / 2 / 2), 1);
  EXPECT_NEAR(engine_memory(tiny_run("shard=4,zero=3,ep=2", moe), 0).parameters, 4 * (dense / 4 + experts / 2 / 2), 1);
}

TEST(EngineMemory, of_adapters_alone_has_gradients_and_optimizer_state) {
  plan::Run run = tiny_run("dp=1");
  run.lora = {.rank = 2, .alpha = 4, .targets = {"q_proj", "v_proj"}};
  // 2 x (64 + 64) x 2 targets x 4 layers = 2,048 parameters.
  EXPECT_EQ(adapter_parameters(run.lora, run.model), 2048);
  const plan::MemoryBreakdown memory = engine_memory(run, 0);
  EXPECT_NEAR(memory.optimizer, 8 * 2048, 1e-6);
  EXPECT_DOUBLE_EQ(memory.parameters, 4 * (2 * kTinyTable + 4 * kTinyLayer));
}

TEST(EngineMemory, weights_that_stay_gathered_are_held_whole) {
  plan::Run run = tiny_run("shard=4,zero=3");
  const double usual = engine_memory(run, 0).buffers;
  run.communication.reshard_after_forward = false;
  EXPECT_DOUBLE_EQ(engine_memory(run, 0).buffers, 4 * (2 * kTinyTable + 4 * kTinyLayer));
  EXPECT_LT(usual, engine_memory(run, 0).buffers);
}

TEST(EngineMemory, gradients_that_every_micro_step_scatters_are_held_in_shards) {
  plan::Run run = tiny_run("shard=4,zero=2");
  run.batch.accumulation = 4;
  const double whole = engine_memory(run, 0).gradients;
  run.communication.reduce_each_micro_step = true;
  // The head and all layers in shards; of the table what autograd leaves and the flat tensor it is reduced in.
  EXPECT_DOUBLE_EQ(engine_memory(run, 0).gradients, (kTinyTable + 4 * kTinyLayer) / 4 * 4 + 2 * 4 * kTinyTable);
  EXPECT_DOUBLE_EQ(whole, (kTinyTable + 4 * kTinyLayer) * 4 + 2 * 4 * kTinyTable);
}

TEST(EngineMemory, replicas_stage_one_bucket_and_keep_what_compression_owes) {
  const double gradient = 4 * (2 * kTinyTable + 4 * kTinyLayer);
  plan::Run run = tiny_run("dp=2");
  EXPECT_EQ(engine_memory(tiny_run("dp=1"), 0).buffers, 0);
  EXPECT_DOUBLE_EQ(engine_memory(run, 0).buffers, gradient);  // smaller than a bucket of 25 MiB
  run.communication.bucket_mib = 1;
  EXPECT_DOUBLE_EQ(engine_memory(run, 0).buffers, kMiB);
  run.communication.compression = spec::Compression::kPowerSgd;
  EXPECT_DOUBLE_EQ(engine_memory(run, 0).buffers, kMiB + gradient);
  run.communication.compression = spec::Compression::kOneBit;
  EXPECT_DOUBLE_EQ(engine_memory(run, 0).buffers, kMiB + 1.5 * gradient);
}

TEST(EngineMemory, offloaded_activations_leave_nothing_of_what_is_computed_again) {
  plan::Run run = tiny_run("dp=1,recompute=full", [] {
    spec::Model model = tiny_llama();
    model.vocab = 16;  // so that the peak is at the loss
    return model;
  }());
  run.batch.micro = 64;
  const double kept = engine_memory(run, 0).activations;
  run.activation_offload = true;
  // Two inputs of 64 elements in each of four layers.
  EXPECT_DOUBLE_EQ(kept - engine_memory(run, 0).activations, 4.0 * 64 * 16 * 4 * 2 * 64);
}

TEST(EngineMemory, images_hold_state_and_what_operators_save) {
  plan::Run run = tiny_run("dp=1", spec::load_model("mnist-cnn"));
  run.batch.sequence_length = 0;
  const plan::MemoryBreakdown two = engine_memory(run, 0);
  EXPECT_DOUBLE_EQ(two.parameters, 4.0 * static_cast<double>(spec::parameter_count(run.model)));
  run.batch.micro = 4;
  EXPECT_DOUBLE_EQ(engine_memory(run, 0).activations, 2 * two.activations);
  EXPECT_GT(two.activations, 0);
}

// fp8 is a format of products.
TEST(EngineMemory, weights_trained_in_fp8_are_two_bytes_wide) {
  EXPECT_EQ(parameter_bytes(spec::Precision::kFp8, spec::OptimizerKind::kAdamW, {}).weight, 2);
  EXPECT_EQ(optimizer_bytes_per_parameter(spec::Precision::kFp8, spec::OptimizerKind::kAdamW), 30);
}

TEST(EngineMemory, optimizer_traffic_counts_reads_and_writes) {
  EXPECT_EQ(optimizer_bytes_per_parameter(spec::Precision::kFp32, spec::OptimizerKind::kAdamW), 28);
  EXPECT_EQ(optimizer_bytes_per_parameter(spec::Precision::kBf16, spec::OptimizerKind::kAdamW), 30);
  EXPECT_EQ(optimizer_bytes_per_parameter(spec::Precision::kFp64, spec::OptimizerKind::kSgd), 40);
}

}  // namespace
}  // namespace lockstep::cost
