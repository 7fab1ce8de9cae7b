// Expected figures are worked out by hand, never by the code under test.
#include "lockstep/cost/volumes.h"

#include <gtest/gtest.h>

namespace lockstep::cost {
namespace {

// Four layers, 64 wide, 4 heads, tied: 64 x (256 + 16) + 4 x 49,984 + 128 = 217,472 parameters.
constexpr double kParameters = 217472;
// Two sequences of 16 in 16 bits: 32 x 64 x 2.
constexpr double kHidden = 4096;
constexpr double kMicroBatches = 3;

spec::Model tiny_gpt(std::int64_t layers = 4) {
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

// Reduces once a step, as Lockstep does.
constexpr StackFacts kReducesOnce{.reduces_each_micro_batch = false};

plan::Layout layout_of(const std::string& text) { return plan::parse_layout(text + ",precision=bf16"); }

Volumes volumes_of(const spec::Model& model, const plan::Layout& layout, const StackFacts& facts = kReducesOnce,
                   std::int64_t stage = 0) {
  const plan::BatchPlan batch{
      .micro = 2, .accumulation = 3, .global_sequences = 6 * layout.data_ranks(), .sequence_length = 16};
  return communication_volumes(model, layout, batch, facts, stage);
}

Volumes volumes_of(const std::string& layout, const StackFacts& facts = kReducesOnce, std::int64_t stage = 0) {
  return volumes_of(tiny_gpt(), layout_of(layout), facts, stage);
}

double at(const Volumes& volumes, CommAxis axis, CollectiveOp op) { return volumes.at(axis, op); }

TEST(Volumes, one_rank_says_nothing) { EXPECT_EQ(volumes_of("dp=1").total(), 0); }

TEST(Volumes, data_parallel_reduces_every_gradient_once_whatever_the_accumulation) {
  const Volumes volumes = volumes_of("dp=4");
  EXPECT_EQ(at(volumes, CommAxis::kDp, CollectiveOp::kAllReduce), kParameters * 4);
  EXPECT_EQ(volumes.total(), kParameters * 4);
  EXPECT_EQ(volumes.of(CommAxis::kDp), volumes.of(CollectiveOp::kAllReduce));
}

TEST(Volumes, gradients_travel_as_the_stack_reduces_them) {
  EXPECT_EQ(volumes_of("dp=4", {.reduced_gradient_bytes = 2}).total(), kParameters * 2);
  plan::Layout layout = plan::parse_layout("dp=4,precision=fp64");
  EXPECT_EQ(volumes_of(tiny_gpt(), layout).total(), kParameters * 8);
}

TEST(Volumes, zero_1_and_2_scatter_gradients_and_gather_weights) {
  for (const char* layout : {"shard=4,zero=1", "shard=4,zero=2"}) {
    const Volumes volumes = volumes_of(layout);
    EXPECT_EQ(at(volumes, CommAxis::kDp, CollectiveOp::kReduceScatter), kParameters * 4) << layout;
    EXPECT_EQ(at(volumes, CommAxis::kDp, CollectiveOp::kAllGather), kParameters * 2) << layout;
    EXPECT_EQ(volumes.total(), kParameters * 6) << layout;
  }
}

TEST(Volumes, replicas_of_a_sharded_state_reduce_their_share) {
  const Volumes volumes = volumes_of("dp=2,shard=2,zero=2");
  EXPECT_EQ(at(volumes, CommAxis::kDp, CollectiveOp::kReduceScatter), kParameters * 4);
  EXPECT_EQ(at(volumes, CommAxis::kDp, CollectiveOp::kAllReduce), kParameters * 4 / 2);
  EXPECT_EQ(at(volumes, CommAxis::kDp, CollectiveOp::kAllGather), kParameters * 2);
}

TEST(Volumes, a_stack_that_scatters_each_micro_batch_does_so_for_zero_2_and_3_only) {
  const StackFacts facts{.reduces_each_micro_batch = true};
  EXPECT_EQ(volumes_of("shard=4,zero=1", facts).of(CollectiveOp::kReduceScatter), kParameters * 4);
  EXPECT_EQ(volumes_of("shard=4,zero=2", facts).of(CollectiveOp::kReduceScatter), kMicroBatches * kParameters * 4);
  EXPECT_EQ(volumes_of("shard=4,zero=3", facts).of(CollectiveOp::kReduceScatter), kMicroBatches * kParameters * 4);
}

TEST(Volumes, zero_3_gathers_weights_twice_in_every_micro_batch) {
  const Volumes volumes = volumes_of("shard=4,zero=3");
  EXPECT_EQ(at(volumes, CommAxis::kDp, CollectiveOp::kAllGather), 2 * kMicroBatches * kParameters * 2);
  EXPECT_EQ(at(volumes, CommAxis::kDp, CollectiveOp::kReduceScatter), kParameters * 4);
}

// Per micro-batch: 4 layers x 2 blocks, forward and backward, and one each for embedding and head.
TEST(Volumes, tensor_parallel_reduces_twice_per_block) {
  const Volumes volumes = volumes_of("tp=2");
  EXPECT_EQ(at(volumes, CommAxis::kTp, CollectiveOp::kAllReduce), kMicroBatches * (16 + 2) * kHidden);
  EXPECT_EQ(volumes.total(), volumes.of(CommAxis::kTp));
  EXPECT_EQ(volumes_of("tp=2,recompute=full").total(), kMicroBatches * (24 + 2) * kHidden);
}

TEST(Volumes, sequence_parallel_splits_each_reduction_and_gathers_inputs_again) {
  const Volumes volumes = volumes_of("tp=2,sequence_parallel=true");
  EXPECT_EQ(at(volumes, CommAxis::kTp, CollectiveOp::kAllReduce), 0);
  EXPECT_EQ(at(volumes, CommAxis::kTp, CollectiveOp::kAllGather), kMicroBatches * (24 + 2) * kHidden);
  EXPECT_EQ(at(volumes, CommAxis::kTp, CollectiveOp::kReduceScatter), kMicroBatches * (16 + 2) * kHidden);
  const Volumes kept = volumes_of("tp=2,sequence_parallel=true", {.keeps_gathered_inputs = true});
  EXPECT_EQ(at(kept, CommAxis::kTp, CollectiveOp::kAllGather), kMicroBatches * (16 + 2) * kHidden);
}

TEST(Volumes, a_ring_of_sequences_passes_keys_and_values_around) {
  // 8 tokens a rank: keys and values 2 x 8 x 64 x 2 = 2,048; 3 steps, once forward, twice backward, 4 layers.
  const Volumes volumes = volumes_of("cp=4,zero=0");
  EXPECT_EQ(at(volumes, CommAxis::kCp, CollectiveOp::kSendReceive), kMicroBatches * 4 * 9 * 2048);
  // The cp ranks share weights: their gradients are summed like those of replicas.
  EXPECT_EQ(at(volumes, CommAxis::kDp, CollectiveOp::kAllReduce), kParameters * 4);
}

TEST(Volumes, heads_for_sequence_exchanges_four_tensors_each_way) {
  const Volumes volumes = volumes_of("cp=4,zero=0,context_exchange=all_to_all");
  EXPECT_EQ(at(volumes, CommAxis::kCp, CollectiveOp::kAllToAll), kMicroBatches * 4 * 2 * (8 * 4 * 64 * 2));
}

TEST(Volumes, key_value_heads_that_do_not_divide_are_replicated) {
  spec::Model model = tiny_gpt();
  model.arch = spec::Arch::kLlama;
  model.kv_heads = 1;
  const Volumes volumes = volumes_of(model, layout_of("cp=4,tp=4,zero=0"));
  EXPECT_EQ(at(volumes, CommAxis::kCp, CollectiveOp::kSendReceive), kMicroBatches * 4 * 9 * (2 * 8 * 16 * 2));
}

TEST(Volumes, a_stage_sends_forward_unless_it_is_last_and_back_unless_it_is_first) {
  for (const auto& [stage, sends] : {std::pair{0, 1}, std::pair{1, 2}, std::pair{3, 1}}) {
    const Volumes volumes = volumes_of("pp=4", kReducesOnce, stage);
    EXPECT_EQ(at(volumes, CommAxis::kPp, CollectiveOp::kSendReceive), kMicroBatches * sends * kHidden) << stage;
    EXPECT_EQ(volumes.total(), volumes.of(CommAxis::kPp));
  }
  // Boundary tensors are split over tp.
  EXPECT_EQ(volumes_of("pp=2,tp=2").of(CommAxis::kPp), kMicroBatches * kHidden / 2);
}

TEST(Volumes, interleaved_chunks_send_as_often_as_there_are_boundaries) {
  EXPECT_EQ(volumes_of("pp=2,virtual_stages=2", kReducesOnce, 0).of(CommAxis::kPp), kMicroBatches * 3 * kHidden);
  EXPECT_EQ(volumes_of("pp=2,virtual_stages=2", kReducesOnce, 1).of(CommAxis::kPp), kMicroBatches * 3 * kHidden);
  // Laid out in a V the last stage of the first chunk is the first of the second.
  const plan::Layout v = layout_of("pp=4,virtual_stages=2,schedule=zero_bubble");
  EXPECT_EQ(volumes_of(tiny_gpt(8), v, kReducesOnce, 0).of(CommAxis::kPp), kMicroBatches * 2 * kHidden);
  EXPECT_EQ(volumes_of(tiny_gpt(8), v, kReducesOnce, 1).of(CommAxis::kPp), kMicroBatches * 4 * kHidden);
  EXPECT_EQ(volumes_of(tiny_gpt(8), v, kReducesOnce, 3).of(CommAxis::kPp), kMicroBatches * 2 * kHidden);
}

TEST(Volumes, stages_reduce_their_own_parameters) {
  // First stage: 1 layer of 50,016 (the final norm is spread over the layers), 17,408 of embedding. The last holds a
  // copy of the tied head.
  EXPECT_EQ(volumes_of("dp=2,pp=4", kReducesOnce, 0).of(CommAxis::kDp), 4 * (50016 + 17408));
  EXPECT_EQ(volumes_of("dp=2,pp=4", kReducesOnce, 1).of(CommAxis::kDp), 4 * 50016);
  EXPECT_EQ(volumes_of("dp=2,pp=4", kReducesOnce, 3).of(CommAxis::kDp), 4 * (50016 + 16384));
}

// Eight experts of 3 x 64 x 128, two per token; outside of them 4 x (16,384 + 512 + 128) + 64 + 2 x 16,384 = 100,928.
spec::Model tiny_moe() {
  spec::Model model = tiny_gpt();
  model.arch = spec::Arch::kMoe;
  model.bias = false;
  model.tied_embeddings = false;
  model.ffn_hidden = 128;
  model.experts = 8;
  model.experts_per_token = 2;
  return model;
}

TEST(Volumes, experts_exchange_top_k_rows_and_reduce_over_their_own_replicas) {
  const Volumes volumes = volumes_of(tiny_moe(), layout_of("dp=8,ep=4"));
  EXPECT_EQ(at(volumes, CommAxis::kEp, CollectiveOp::kAllToAll), kMicroBatches * 4 * 4 * 2 * kHidden);
  const double experts_on_rank = 4 * 8 / 4 * 3 * 64 * 128;
  EXPECT_EQ(at(volumes, CommAxis::kDp, CollectiveOp::kAllReduce), 4 * (100928 + experts_on_rank));
  // With every expert on one rank only, nobody shares them.
  EXPECT_EQ(volumes_of(tiny_moe(), layout_of("dp=8,ep=8")).of(CommAxis::kDp), 4 * 100928);
}

TEST(Volumes, sharded_experts_are_gathered_over_their_own_replicas) {
  const Volumes volumes = volumes_of(tiny_moe(), layout_of("shard=8,ep=4"));
  const double experts_on_rank = 4 * 8 / 4 * 3 * 64 * 128;
  EXPECT_EQ(volumes.of(CollectiveOp::kAllGather), 2 * kMicroBatches * 2 * (100928 + experts_on_rank));
  EXPECT_EQ(volumes.of(CollectiveOp::kAllReduce), 4 * experts_on_rank);
}

TEST(Volumes, replicas_of_sharded_experts_reduce_their_share) {
  const StackFacts facts{.reduces_each_micro_batch = true};
  const Volumes volumes = volumes_of(tiny_moe(), layout_of("dp=2,shard=8,ep=4"), facts);
  const double experts_on_rank = 4 * 8 / 4 * 3 * 64 * 128;  // sharded over 2, each shard on 2 ranks
  EXPECT_EQ(volumes.of(CollectiveOp::kReduceScatter), kMicroBatches * 4 * (100928 + experts_on_rank));
  EXPECT_EQ(volumes.of(CollectiveOp::kAllGather), 2 * kMicroBatches * 2 * (100928 + experts_on_rank));
  EXPECT_EQ(volumes.of(CollectiveOp::kAllReduce), 4 * (100928 / 8 + experts_on_rank / 2));
}

TEST(Volumes, images_are_data_parallel) {
  spec::Model model;
  model.arch = spec::Arch::kMnistCnn;
  model.image_size = 28;
  model.image_channels = 1;
  model.classes = 10;
  const double parameters = 320 + 18496 + 9216 * 128 + 128 + 1290;
  EXPECT_EQ(volumes_of(model, plan::parse_layout("dp=3")).total(), 4 * parameters);
}

}  // namespace
}  // namespace lockstep::cost
