// The formulas of cost/ against examples worked by hand from the papers they cite; nothing here is computed by the code
// under test.
#include <gtest/gtest.h>

#include "lockstep/base/units.h"
#include "lockstep/cost/gemm.h"
#include "lockstep/cost/layer.h"
#include "lockstep/cost/links.h"
#include "lockstep/cost/pricer/pricer.h"
#include "lockstep/cost/states.h"

namespace lockstep::cost {
namespace {

using plan::Layout;
using plan::Recompute;
using plan::Schedule;

// --- ZeRO (Rajbhandari et al. 2020, figure 1): 7.5B parameters on 64 ranks, 2 + 2 + 12 bytes each
// ---------------------
struct ZeroCase {
  std::int64_t zero;
  double gigabytes;  // the figure's own
};

TEST(States, of_the_zero_papers_example) {
  StackFacts facts;
  facts.kept_gradient_bytes = 2;
  const ParameterBytes bytes = parameter_bytes(spec::Precision::kFp16, spec::OptimizerKind::kAdamW, facts);
  EXPECT_EQ(bytes.weight, 2);
  EXPECT_EQ(bytes.gradient, 2);
  EXPECT_EQ(bytes.optimizer, 12);
  for (const ZeroCase& c : {ZeroCase{0, 120}, ZeroCase{1, 31.4}, ZeroCase{2, 16.6}, ZeroCase{3, 1.9}}) {
    Layout layout;
    layout.zero = c.zero;
    (c.zero == 0 ? layout.dp : layout.shard) = 64;
    const StateBytesOnRank state =
        state_on_rank(7.5e9, dense_shards(layout), layout, bytes, divides_gradients(layout, facts, 1));
    const double total = (state.parameters + state.gradients + state.optimizer).value();
    EXPECT_NEAR(total / 1e9, c.gigabytes, 0.05) << "ZeRO-" << c.zero;
  }
}

// Master copy 4, two means of 2 bytes: 8 instead of 12 a parameter.
TEST(States, of_narrow_means) {
  const auto optimizer = [](bool narrow) {
    return parameter_bytes(spec::Precision::kBf16, spec::OptimizerKind::kAdamW, StackFacts{}, narrow).optimizer;
  };
  EXPECT_EQ(optimizer(false), 12);
  EXPECT_EQ(optimizer(true), 8);
}

// Llama 2 7B with LoRA of rank 8 on q and v (Hu et al. 2021): 2 x 32 layers of 8 x (4096 + 4096) = 4,194,304 trained
// parameters of 6,738,415,616. Frozen weights take 2 bytes and nothing else; each trained one 4 for its gradient and
// 12 for AdamW's means and the master copy: 13.48 GB + 0.017 GB + 0.050 GB, where full training takes 121.3 GB.
TEST(States, of_adapters_are_those_of_the_adapters_alone) {
  constexpr double kParameters = 6738415616, kTrained = 4194304;
  const auto bytes_of = [&](double share) {
    StackFacts facts;
    facts.kept_gradient_bytes = 4;
    facts.trained_share = share;
    const ParameterBytes bytes = parameter_bytes(spec::Precision::kBf16, spec::OptimizerKind::kAdamW, facts);
    return state_on_rank(kParameters, 1, Layout{}, bytes, false);
  };
  const StateBytesOnRank adapters = bytes_of(kTrained / kParameters), whole = bytes_of(1);
  EXPECT_NEAR(adapters.parameters.value(), 13.4768e9, 1e6);
  EXPECT_NEAR(adapters.gradients.value(), 4 * kTrained, 1);
  EXPECT_NEAR(adapters.optimizer.value(), 12 * kTrained, 1);
  EXPECT_NEAR((whole.parameters + whole.gradients + whole.optimizer).value(), 121.29e9, 1e7);
}

TEST(States, gradients_are_held_whole_where_a_stack_reduces_once) {
  Layout layout;
  layout.zero = 2;
  layout.shard = 8;
  StackFacts once;
  once.reduces_each_micro_batch = false;
  EXPECT_TRUE(divides_gradients(layout, once, 1));
  EXPECT_FALSE(divides_gradients(layout, once, 4));
  EXPECT_TRUE(divides_gradients(layout, StackFacts{}, 4));
}

TEST(States, experts_are_divided_over_what_expert_parallelism_leaves) {
  Layout layout;
  layout.zero = 1;
  layout.shard = 16;
  layout.ep = 4;
  EXPECT_EQ(dense_shards(layout), 16);
  EXPECT_EQ(expert_shards(layout), 4);
  layout.ep = 16;
  EXPECT_EQ(expert_shards(layout), 1);
}

// --- Activations (Korthikanti et al. 2022, table 2): s b h (34 + 5 a s / h) bytes a layer, divided by t as they say
// ----
struct ActivationCase {
  const char* name;
  std::int64_t tp;
  bool sequence_parallel;
  Recompute recompute;
  double bytes_per_sbh;  // the table's expression with a s / h = 16
};

TEST(Activations, of_gpt_as_korthikanti_counts_them) {
  spec::Model model;
  model.arch = spec::Arch::kGpt;
  model.layers = 4;
  model.hidden = 1024;
  model.heads = model.kv_heads = 16;
  model.head_dim = 64;
  model.ffn_hidden = 4096;
  model.vocab = 512;
  model.max_sequence = 1024;
  model.dropout = 0.1;
  const Dimensions dimensions = dimensions_of(model);
  const Constants constants;
  StackFacts facts;
  facts.flash_attention = false;
  const DeviceRates rates;
  const LinkRates links;
  const GroupPlacements groups;
  const double scores = 5.0 * 16 * 1024 / 1024;  // 5 a s / h = 80
  const std::vector<ActivationCase> cases{{"one rank", 1, false, Recompute::kNone, 34 + scores},
                                          {"tensor parallel", 8, false, Recompute::kNone, 10 + (24 + scores) / 8},
                                          {"and sequence parallel", 8, true, Recompute::kNone, (34 + scores) / 8},
                                          {"selective recompute", 8, true, Recompute::kSelective, 34.0 / 8},
                                          {"full recompute", 1, false, Recompute::kFull, 2}};
  for (const ActivationCase& c : cases) {
    Layout layout;
    layout.tp = c.tp;
    layout.sequence_parallel = c.sequence_parallel;
    layout.recompute = c.recompute;
    layout.precision = spec::Precision::kFp16;
    const LayerContext context{.model = dimensions,
                               .layout = layout,
                               .constants = constants,
                               .facts = facts,
                               .rates = rates,
                               .links = links,
                               .groups = groups,
                               .micro = 2,
                               .sequence = 1024};
    EXPECT_NEAR(layer_bytes(context).kept, 2.0 * 1024 * 1024 * c.bytes_per_sbh, 1) << c.name;
  }
}

// --- Links
// --------------------------------------------------------------------------------------------------------------
TEST(Links, place_groups_in_rank_order) {
  const GroupPlacement tp = place_group(4, 1, 8);
  EXPECT_EQ(tp.per_node, 4);
  EXPECT_EQ(tp.nodes, 1);
  const GroupPlacement data = place_group(16, 4, 8);  // every fourth rank of nodes of eight
  EXPECT_EQ(data.per_node, 2);
  EXPECT_EQ(data.nodes, 8);
  const GroupPlacement stages = place_group(4, 16, 8);
  EXPECT_EQ(stages.per_node, 1);
  EXPECT_EQ(stages.nodes, 4);
}

TEST(Links, ring_volumes_over_the_link_that_binds) {
  LinkRates links;
  links.intra = BytesPerSecond(400e9);
  links.nic = BytesPerSecond(50e9);
  const Bytes gigabyte(1e9);
  // 8 ranks of a node: 2 x 7/8 GB at 400 GB/s.
  EXPECT_NEAR(collective_on_links(links, place_group(8, 1, 8), CollectiveOp::kAllReduce, gigabyte).value(),
              2 * 7.0 / 8 / 400, 1e-12);
  // 16 ranks, one a node: 2 x 15/16 GB through one NIC share each.
  EXPECT_NEAR(collective_on_links(links, place_group(16, 8, 8), CollectiveOp::kAllReduce, gigabyte).value(),
              2 * 15.0 / 16 / 50, 1e-12);
  // 16 ranks on two nodes bring eight NIC shares: 400 GB/s.
  EXPECT_NEAR(collective_on_links(links, place_group(16, 1, 8), CollectiveOp::kAllGather, gigabyte).value(),
              15.0 / 16 / 400, 1e-12);
  // All-to-all over two nodes: half the rows leave the node.
  EXPECT_NEAR(collective_on_links(links, place_group(16, 1, 8), CollectiveOp::kAllToAll, gigabyte).value(), 0.5 / 50,
              1e-12);
  EXPECT_EQ(collective_on_links(links, place_group(1, 1, 8), CollectiveOp::kAllReduce, gigabyte).value(), 0);
}

TEST(Links, hidden_communication_is_bounded_by_compute_and_slows_it) {
  EXPECT_DOUBLE_EQ(exposed_seconds(Seconds(10), Seconds(100), 0.2, 1.0).value(), 2);
  EXPECT_DOUBLE_EQ(exposed_seconds(Seconds(10), Seconds(3), 0.2, 1.0).value(), 7);
  EXPECT_DOUBLE_EQ(exposed_seconds(Seconds(10), Seconds(100), 0.2, 1.5).value(), 2 + 8 * 0.5);
  EXPECT_DOUBLE_EQ(exposed_seconds(Seconds(10), Seconds(0), 0.2, 1.5).value(), 10);
}

// --- Products
// -----------------------------------------------------------------------------------------------------------
TEST(Products, run_at_half_rate_at_their_half_length) {
  DeviceRates rates;
  rates.gemm = FlopsPerSecond(1e12);
  EXPECT_DOUBLE_EQ(gemm_seconds(rates, 1000, 1000, 1000).value(), 2e-3);
  rates.m_half = 1000;
  EXPECT_DOUBLE_EQ(gemm_seconds(rates, 1000, 1000, 1000).value(), 4e-3);
}

// --- The pricer as a whole
// ----------------------------------------------------------------------------------------------
Profile plain_profile() {
  Profile profile;
  profile.fitted = Fitted{.hardware = "H100", .stack = "test", .runs = 1};  // without runs: what products reach
  Constants& k = profile.fitted->constants;
  k.gemm_efficiency = k.attention_efficiency = 1;
  k.gemm_m_half = k.gemm_n_half = k.gemm_k_half = 1e-9;
  k.gemm_backward = k.attention_backward = 1;
  k.attention_half = 1e-9;
  k.pointwise_passes = k.logits_passes = 1e-9;
  k.layer_host_seconds = k.tp_host_seconds = k.micro_batch_seconds = k.step_seconds = 1e-12;
  k.pipeline_scale_seconds = k.jitter = k.optimizer_passes = 1e-12;
  return profile;
}

TEST(Pricer, takes_six_flops_per_parameter_and_token_where_nothing_else_costs) {
  const spec::Model model = spec::load_model("llama2-7b");
  spec::Cluster cluster = spec::load_cluster("1x1xH100");
  cluster.groups[0].device.memory_bytes_per_second = 1e30;
  const Pricer pricer(model, cluster, plain_profile(), {.sequence_length = 4096});
  Layout layout;
  layout.precision = spec::Precision::kBf16;
  const plan::BatchPlan batch{.micro = 2, .accumulation = 3, .global_sequences = 6, .sequence_length = 4096};
  // 6 x tokens x parameters that multiply: 32 (4 x 4096^2 + 3 x 4096 x 11008) + 32000 x 4096.
  const double products = 6.0 * 6 * 4096 * (32.0 * (4.0 * 4096 * 4096 + 3.0 * 4096 * 11008) + 32000.0 * 4096);
  // Attention is not above the peak either: each query sees half of the keys, backward is 2.5 x forward.
  const double attention = 3.5 * 32 * (6 * 4096) * 4.0 * 2048 * 4096, flops = products + attention;
  EXPECT_NEAR(pricer.price(layout, batch).step_seconds(), flops / cluster.groups[0].device.peak_bf16_flops,
              1e-4 * flops / cluster.groups[0].device.peak_bf16_flops);
}

TEST(Pricer, stages_are_what_the_price_is_made_of) {
  const spec::Model model = spec::load_model("llama2-13b");
  const Pricer pricer(model, spec::load_cluster("4x8xH100"), profile_for("H100"), {.sequence_length = 4096});
  for (const char* text :
       {"pp=4,shard=8,zero=1,tp=1,precision=bf16", "pp=8,dp=2,tp=2,sequence_parallel=true,precision=bf16",
        "pp=4,shard=4,zero=1,tp=2,virtual_stages=2,sequence_parallel=true,recompute=selective,precision=bf16",
        "pp=4,shard=8,zero=1,schedule=zero_bubble,stage_layers=9+11+11+9,precision=bf16"}) {
    const Layout layout = plan::parse_layout(text);
    const plan::BatchPlan batch{
        .micro = 1, .accumulation = 16, .global_sequences = 16 * layout.data_ranks(), .sequence_length = 4096};
    const Price price = pricer.price(layout, batch);
    const std::vector<StagePrice> stages = pricer.stages(layout, batch);
    ASSERT_EQ(stages.size(), static_cast<std::size_t>(layout.pp));
    double most = 0;
    std::int64_t layers = 0;
    for (const StagePrice& stage : stages) {
      most = std::max(most, stage.memory.total());
      layers += stage.layers;
    }
    EXPECT_EQ(layers, model.layers) << text;
    EXPECT_DOUBLE_EQ(most, price.memory.total()) << text;
    EXPECT_LE(pricer.memory_floor(layout), price.memory.total()) << text;
    const StagePrice& slow = stages[static_cast<std::size_t>(price.slow_stage)];
    EXPECT_GE(price.step_seconds(), 16 * (slow.forward_seconds + slow.backward_seconds)) << text;
  }
}

TEST(Pricer, more_of_a_resource_never_costs_time) {
  const spec::Model model = spec::load_model("llama2-13b");
  const spec::Cluster cluster = spec::load_cluster("4x8xH100");
  const Layout layout = plan::parse_layout("shard=32,zero=3,precision=bf16");
  const plan::BatchPlan batch{.micro = 1, .accumulation = 4, .global_sequences = 128, .sequence_length = 4096};
  const auto seconds = [&](const spec::Cluster& c) {
    return Pricer(model, c, profile_for("H100"), {.sequence_length = 4096}).price(layout, batch).step_seconds();
  };
  const double now = seconds(cluster);
  spec::Cluster more = cluster;
  more.groups[0].nic.bytes_per_second *= 2;
  EXPECT_LE(seconds(more), now);
  more = cluster;
  more.groups[0].device.peak_bf16_flops *= 2;
  EXPECT_LT(seconds(more), now);
  more = cluster;
  more.groups[0].device.memory_bytes_per_second *= 2;
  EXPECT_LT(seconds(more), now);
}

TEST(Pricer, out_of_memory_is_even_odds_at_the_capacity) {
  Price price;
  price.memory.activations = 80e9;
  price.memory.capacity = 80e9;
  price.memory_sigma = 0.1;
  EXPECT_DOUBLE_EQ(price.out_of_memory_probability(), 0.5);
  price.memory.capacity = 80e9 * std::exp(1.2816 * 0.1);
  EXPECT_NEAR(price.out_of_memory_probability(), 0.1, 1e-4);
  EXPECT_TRUE(price.fits());
}

}  // namespace
}  // namespace lockstep::cost
