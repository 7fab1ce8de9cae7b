// Expected figures are worked out by hand, never by the code under test.
#include "tests/cost/volumes.h"

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
  return communication_volumes(model, layout, batch, facts, {.stage = stage});
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
  // First stage: 1 layer of 49,984, 17,408 of embedding. The last holds a copy of the tied head, and the final norm.
  EXPECT_EQ(volumes_of("dp=2,pp=4", kReducesOnce, 0).of(CommAxis::kDp), 4 * (49984 + 17408));
  EXPECT_EQ(volumes_of("dp=2,pp=4", kReducesOnce, 1).of(CommAxis::kDp), 4 * 49984);
  EXPECT_EQ(volumes_of("dp=2,pp=4", kReducesOnce, 3).of(CommAxis::kDp), 4 * (49984 + 16384 + 128));
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

// What Lockstep does otherwise than the published stacks, and the small exchanges that are known of it alone.

TEST(LockstepVolumes, follow_the_choices_of_the_job) {
  spec::Communication choices;
  EXPECT_EQ(volumes_of("shard=4,zero=3", lockstep_facts(choices)).of(CollectiveOp::kAllGather),
            2 * kMicroBatches * kParameters * 2);
  choices.reduce_each_micro_step = true;
  choices.reshard_after_forward = false;
  const Volumes volumes = volumes_of("shard=4,zero=3", lockstep_facts(choices));
  EXPECT_EQ(volumes.of(CollectiveOp::kAllGather), kParameters * 2);
  EXPECT_EQ(volumes.of(CollectiveOp::kReduceScatter), kMicroBatches * kParameters * 4);
}

TEST(LockstepVolumes, every_step_shares_fifteen_sums_one_of_each_rank_and_the_number_of_targets) {
  const Volumes volumes = volumes_of("dp=4", lockstep_facts());
  EXPECT_EQ(volumes.at(CommGroup::kWorld, CollectiveOp::kAllReduce), 120 + 4 * 8);
  EXPECT_EQ(volumes.at(CommGroup::kEveryone, CollectiveOp::kAllReduce), kParameters * 4 + 8);
  EXPECT_EQ(volumes_of("tp=2", lockstep_facts()).of(CommAxis::kWorld), 120 + 2 * 8);
  EXPECT_EQ(volumes_of("dp=1", lockstep_facts()).total(), 0);
}

TEST(LockstepVolumes, a_split_vocabulary_exchanges_three_numbers_per_row) {
  const double others = volumes_of("tp=2").at(CommGroup::kTp, CollectiveOp::kAllReduce);
  const double all = volumes_of("tp=2", lockstep_facts()).at(CommGroup::kTp, CollectiveOp::kAllReduce);
  EXPECT_EQ(all - others, kMicroBatches * 32 * 3 * 4);
}

TEST(LockstepVolumes, sequence_parallel_sums_the_gradients_of_norms_positions_and_late_biases) {
  const Volumes volumes = volumes_of("tp=2,sequence_parallel=true", lockstep_facts());
  // Per layer two norms of 128 and two biases of 64; 16 positions of 64; the final norm. Softmax: as above.
  EXPECT_EQ(volumes.at(CommGroup::kTp, CollectiveOp::kAllReduce),
            4 * (4 * (2 * 128 + 2 * 64) + 16 * 64 + 128) + kMicroBatches * 32 * 3 * 4);
  // Gathered once and kept.
  EXPECT_EQ(volumes.at(CommGroup::kTp, CollectiveOp::kAllGather), kMicroBatches * (16 + 2) * kHidden);
}

TEST(LockstepVolumes, ranks_that_share_a_key_head_sum_its_gradient) {
  spec::Model model = tiny_gpt();
  model.arch = spec::Arch::kLlama;
  model.bias = false;
  model.kv_heads = 2;
  const double keys = 4 * (2 * 64 * 16) * 4;  // four layers, key and value of one head, fp32 gradients
  const Volumes two = volumes_of(model, layout_of("tp=4"), lockstep_facts());
  EXPECT_EQ(two.at(CommGroup::kKeySharers, CollectiveOp::kAllReduce), keys);
  model.kv_heads = 1;
  const Volumes one = volumes_of(model, layout_of("tp=4"), lockstep_facts());
  EXPECT_EQ(one.at(CommGroup::kKeySharers, CollectiveOp::kAllReduce), 0);
  EXPECT_EQ(one.at(CommGroup::kTp, CollectiveOp::kAllReduce) - two.at(CommGroup::kTp, CollectiveOp::kAllReduce), keys);
}

TEST(LockstepVolumes, ends_of_a_pipeline_share_the_tied_table_unless_they_are_one_rank) {
  const double table = 256 * 64 * 4;
  for (const auto& [stage, bytes] : {std::pair{0, table}, std::pair{1, 0.0}, std::pair{3, table}}) {
    const Volumes volumes = volumes_of("pp=4", lockstep_facts(), stage);
    EXPECT_EQ(volumes.at(CommGroup::kEnds, CollectiveOp::kAllReduce), bytes) << stage;
  }
  EXPECT_EQ(volumes_of("pp=2,shard=4,zero=1", lockstep_facts()).at(CommGroup::kEnds, CollectiveOp::kAllReduce),
            table / 4);
  const plan::Layout v = layout_of("pp=2,dp=2,virtual_stages=2,schedule=zero_bubble");
  const Volumes volumes = volumes_of(tiny_gpt(), v, lockstep_facts(), 0);
  EXPECT_EQ(volumes.at(CommGroup::kEnds, CollectiveOp::kAllReduce), 0);
  // Both of its chunks have the table, and each copy's gradient is reduced.
  EXPECT_EQ(volumes.at(CommGroup::kEveryone, CollectiveOp::kAllReduce), 4 * (2 * 49984 + 17408 + 16384 + 128) + 8);
}

TEST(LockstepVolumes, boundaries_are_split_by_sequence_parallel_alone) {
  EXPECT_EQ(volumes_of("pp=2,tp=2", lockstep_facts()).at(CommGroup::kPipeline, CollectiveOp::kSendReceive),
            kMicroBatches * kHidden);
  EXPECT_EQ(volumes_of("pp=2,tp=2,sequence_parallel=true", lockstep_facts())
                .at(CommGroup::kPipeline, CollectiveOp::kSendReceive),
            kMicroBatches * kHidden / 2);
}

TEST(LockstepVolumes, selective_recomputation_repeats_what_the_attention_block_exchanges) {
  const auto reduced = [](const char* layout) {
    return volumes_of(layout, lockstep_facts()).at(CommGroup::kTp, CollectiveOp::kAllReduce);
  };
  EXPECT_EQ(reduced("tp=2,recompute=selective") - reduced("tp=2"), kMicroBatches * 4 * kHidden);
  EXPECT_EQ(reduced("tp=2,recompute=full") - reduced("tp=2"), kMicroBatches * 8 * kHidden);
  const auto sent = [](const char* layout) {
    return volumes_of(layout, lockstep_facts()).at(CommGroup::kCp, CollectiveOp::kSendReceive);
  };
  EXPECT_EQ(sent("cp=4,zero=0,recompute=selective"), kMicroBatches * 4 * 12 * 2048);
}

TEST(LockstepVolumes, keys_of_a_shared_head_go_to_each_rank_that_needs_them) {
  spec::Model model = tiny_gpt();
  model.arch = spec::Arch::kLlama;
  model.kv_heads = 2;
  const Volumes volumes = volumes_of(model, layout_of("cp=4,zero=0,context_exchange=all_to_all"), lockstep_facts());
  // Four query heads and twice two key and two value heads of 16 go out, four come home: 8 tokens in 16 bits.
  EXPECT_EQ(volumes.at(CommGroup::kCp, CollectiveOp::kAllToAll), kMicroBatches * 4 * 2 * (8 * (4 + 8 + 4) * 16 * 2));
}

TEST(LockstepVolumes, routed_rows_travel_where_the_router_sent_them) {
  const plan::BatchPlan batch{.micro = 2, .accumulation = 3, .global_sequences = 48, .sequence_length = 16};
  const plan::Layout layout = layout_of("dp=8,ep=4,tp=2,sequence_parallel=true");
  const Volumes volumes =
      communication_volumes(tiny_moe(), layout, batch, lockstep_facts(), {}, RoutedRows{.sent = 1000, .received = 700});
  const double counts = kMicroBatches * 4 * 8 * 8;
  EXPECT_EQ(volumes.at(CommGroup::kEp, CollectiveOp::kAllToAll), 2 * 1700 * 64 * 2 + counts);
  // Spread evenly: both ways two rows per token, of whole sequences.
  const Volumes even = communication_volumes(tiny_moe(), layout, batch, lockstep_facts());
  EXPECT_EQ(even.at(CommGroup::kEp, CollectiveOp::kAllToAll), 2 * kMicroBatches * 4 * 2 * (2 * 32) * 64 * 2 + counts);
}

TEST(LockstepVolumes, a_loss_or_a_capacity_of_experts_is_everybodys) {
  const auto everyone = [](double z_loss, double capacity, CollectiveOp op) {
    spec::Model model = tiny_moe();
    model.router_z_loss = z_loss;
    model.capacity_factor = capacity;
    return volumes_of(model, layout_of("dp=8"), lockstep_facts()).at(CommGroup::kEveryone, op);
  };
  const double neither = everyone(0, 0, CollectiveOp::kAllReduce);
  const double counts = kMicroBatches * 4 * (8 + 2 * 8) * 8;
  EXPECT_EQ(everyone(0.1, 0, CollectiveOp::kAllReduce), neither + counts);
  EXPECT_EQ(everyone(0.1, 0, CollectiveOp::kAllGather), 0);
  EXPECT_EQ(everyone(0, 1.5, CollectiveOp::kAllReduce), neither + counts);
  // Of each of 8 ranks 16 positions and two choices of two samples.
  EXPECT_EQ(everyone(0, 1.5, CollectiveOp::kAllGather), kMicroBatches * 4 * 8 * (16 + 2 * 16 * 2) * 4);
}

TEST(LockstepVolumes, zero_scatters_experts_as_other_weights) {
  const double experts_on_rank = 4 * 8 / 4 * 3 * 64 * 128;  // over 2 shards
  const Volumes volumes = volumes_of(tiny_moe(), layout_of("dp=2,shard=8,ep=4,zero=1"), lockstep_facts());
  EXPECT_EQ(volumes.at(CommGroup::kExpertShards, CollectiveOp::kReduceScatter), 4 * experts_on_rank);
  EXPECT_EQ(volumes.at(CommGroup::kExpertShards, CollectiveOp::kAllGather), 2 * experts_on_rank);
  EXPECT_EQ(volumes.at(CommGroup::kExpertReplicas, CollectiveOp::kAllReduce), 4 * experts_on_rank / 2);
  EXPECT_EQ(volumes.at(CommGroup::kExpertEveryone, CollectiveOp::kAllReduce), 0);
}

spec::Model tiny_mamba() {
  spec::Model model = tiny_gpt();
  model.arch = spec::Arch::kMamba;
  model.bias = false;
  model.heads = model.kv_heads = model.head_dim = model.ffn_hidden = 0;
  model.state_size = 8;
  model.conv_kernel = 4;
  model.expand = 2;
  model.dt_rank = 4;
  return model;
}

TEST(LockstepVolumes, state_space_layers_sum_one_projection_inside_their_block) {
  const Volumes volumes = volumes_of(tiny_mamba(), layout_of("tp=2"), lockstep_facts());
  const double softmax = 32 * 3 * 4;
  EXPECT_EQ(volumes.at(CommGroup::kTp, CollectiveOp::kAllReduce),
            kMicroBatches * ((8 + 2) * kHidden + 8 * 32 * (4 + 2 * 8) * 2 + softmax));
}

TEST(LockstepVolumes, state_goes_to_the_next_rank_and_its_gradient_back) {
  // Two sequences, 128 channels: a state of 8 and three rows of the convolution.
  const double state = kMicroBatches * 4 * 2 * 128 * (8 + 3) * 2;
  const plan::BatchPlan batch{.micro = 2, .accumulation = 3, .global_sequences = 6, .sequence_length = 16};
  const auto of_rank = [&](const char* layout, std::int64_t cp) {
    return communication_volumes(tiny_mamba(), layout_of(layout), batch, lockstep_facts(), {.cp = cp});
  };
  const auto check = [&](const char* layout, std::int64_t cp, double sent, double received) {
    const Volumes volumes = of_rank(layout, cp);
    EXPECT_EQ(volumes.at(CommGroup::kCp, CollectiveOp::kSendReceive), sent * state) << layout << " rank " << cp;
    EXPECT_EQ(volumes.received[static_cast<std::size_t>(CommGroup::kCp)], received * state) << layout << " rank " << cp;
  };
  check("cp=4,zero=0", 0, 1, 1);
  check("cp=4,zero=0", 1, 2, 2);
  check("cp=4,zero=0", 3, 1, 1);
  check("cp=4,zero=0,recompute=full", 0, 2, 1);
  check("cp=4,zero=0,recompute=full", 2, 3, 3);
  check("cp=4,zero=0,recompute=full", 3, 1, 2);
}

TEST(LockstepVolumes, blocks_are_padded_until_they_divide_by_the_shards) {
  // A table of 16,384, positions of 1,024, four layers of 49,984 and a final norm of 128: over 3 ranks all lack 2, but
  // the norm 1.
  const Volumes volumes = volumes_of("shard=3,zero=1", lockstep_facts());
  EXPECT_EQ(volumes.of(CollectiveOp::kReduceScatter), 4 * (16386 + 1026 + 4 * 49986 + 129));
}

TEST(ParameterBlocks, of_one_rank_are_the_model) {
  for (const std::string& name : spec::model_preset_names()) {
    const spec::Model model = spec::load_model(name);
    if (model.decoder != spec::Decoder{}) continue;  // Llama's relatives: spec_model has their published sizes
    std::int64_t sum = 0;
    for (const ParameterBlock& block : parameter_blocks(model, plan::Layout{}, {}, model.layers)) {
      sum += block.copies * block.elements;
    }
    std::int64_t expected = spec::parameter_count(model);
    if (model.arch == spec::Arch::kBert && model.classes == 0) {
      // parameter_count() has the pooler; a masked LM has a transform, a norm and the decoder's bias.
      expected += 2 * model.hidden + model.vocab;
    }
    EXPECT_EQ(sum, expected) << name;
  }
}

TEST(ParameterBlocks, of_tensor_parallel_ranks_share_what_does_not_divide) {
  spec::Model model = tiny_gpt();
  model.vocab = 255;
  const auto table_of = [&](std::int64_t rank) {
    return parameter_blocks(model, layout_of("tp=2"), {.tp = rank}, model.layers).front().elements;
  };
  EXPECT_EQ(table_of(0), 127 * 64);
  EXPECT_EQ(table_of(1), 128 * 64);
}

}  // namespace
}  // namespace lockstep::cost
