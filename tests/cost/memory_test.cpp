// Expected figures are worked out by hand, never by the code under test.
#include "lockstep/cost/memory.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::cost {
namespace {

spec::Model tiny_gpt(std::int64_t layers) {
  spec::Model model;
  model.arch = spec::Arch::kGpt;
  model.layers = layers;
  model.hidden = 64;
  model.heads = model.kv_heads = 4;
  model.head_dim = 16;
  model.ffn_hidden = 256;
  model.vocab = 256;
  model.max_sequence = 16;
  model.tied_embeddings = true;
  return model;
}

TEST(Memory, of_the_training_state_of_gpt2_124m) {
  Workload workload;
  workload.model = spec::load_model("gpt2-124m");
  workload.batch = {.micro = 1, .accumulation = 1, .global_sequences = 1, .sequence_length = 128};
  const plan::MemoryBreakdown fp32 = memory_of(workload, {}, nullptr);
  EXPECT_DOUBLE_EQ(fp32.parameters, 4.0 * 124439808);
  EXPECT_DOUBLE_EQ(fp32.gradients, 4.0 * 124439808);
  EXPECT_DOUBLE_EQ(fp32.optimizer, 8.0 * 124439808);
  workload.precision = spec::Precision::kBf16;
  const plan::MemoryBreakdown bf16 = memory_of(workload, {}, nullptr);
  EXPECT_DOUBLE_EQ(bf16.parameters, 2.0 * 124439808);
  EXPECT_DOUBLE_EQ(bf16.gradients, 4.0 * 124439808);
  EXPECT_DOUBLE_EQ(bf16.optimizer, 12.0 * 124439808);  // master copy, m and v
  workload.optimizer = spec::OptimizerKind::kSgd;
  EXPECT_DOUBLE_EQ(memory_of(workload, {}, nullptr).optimizer, 8.0 * 124439808);
}

TEST(Memory, optimizer_traffic_counts_reads_and_writes) {
  EXPECT_DOUBLE_EQ(optimizer_bytes_per_parameter(spec::Precision::kFp32, spec::OptimizerKind::kAdamW), 28);
  EXPECT_DOUBLE_EQ(optimizer_bytes_per_parameter(spec::Precision::kBf16, spec::OptimizerKind::kAdamW), 30);
  EXPECT_DOUBLE_EQ(optimizer_bytes_per_parameter(spec::Precision::kFp64, spec::OptimizerKind::kSgd), 40);
}

TEST(Memory, one_more_layer_keeps_what_korthikanti_counts) {
  // 34 s b h bytes in 16 bits less 2 s b h for the dropout masks, which are drawn again; no score matrix; one logarithm
  // per head and token. s b h = 16 x 2 x 64 = 2048: 32 x 2048 + 2 x 4 x 32 = 65,792.
  spec::Model one = tiny_gpt(1), two = tiny_gpt(2);
  one.dropout = two.dropout = 0.1;
  const double layer =
      activation_bytes(two, 2, 16, spec::Precision::kBf16) - activation_bytes(one, 2, 16, spec::Precision::kBf16);
  EXPECT_DOUBLE_EQ(layer, 65792);
  // Without dropout the MLP keeps only gelu's input: 8 s b h bytes less.
  const double fused = activation_bytes(tiny_gpt(2), 2, 16, spec::Precision::kBf16) -
                       activation_bytes(tiny_gpt(1), 2, 16, spec::Precision::kBf16);
  EXPECT_DOUBLE_EQ(fused, 65792 - 8 * 2048);
}

TEST(Memory, buffers_and_overhead_come_from_ranks_and_profile) {
  Workload workload;
  workload.model = tiny_gpt(1);
  workload.batch = {.micro = 2, .accumulation = 1, .global_sequences = 8, .sequence_length = 16};
  plan::Layout layout;
  EXPECT_EQ(memory_of(workload, layout, nullptr).buffers, 0);
  layout.dp = 4;
  Profile profile;
  profile.framework_bytes = 3e8;
  const plan::MemoryBreakdown memory = memory_of(workload, layout, &profile);
  EXPECT_DOUBLE_EQ(memory.buffers, 4.0 * 67520);  // the whole gradient is smaller than a bucket
  EXPECT_DOUBLE_EQ(memory.overhead, 3e8);
  EXPECT_DOUBLE_EQ(memory.total(), memory.parameters + memory.gradients + memory.optimizer + memory.activations +
                                       memory.buffers + memory.overhead);
}

TEST(Memory, layouts_without_a_formula_are_a_clear_no) {
  Workload workload;
  workload.model = tiny_gpt(1);
  EXPECT_THROW(memory_of(workload, plan::parse_layout("tp=2"), nullptr), UserError);
  EXPECT_THROW(memory_of(workload, plan::parse_layout("shard=2"), nullptr), UserError);
}

}  // namespace
}  // namespace lockstep::cost
