// Which link a message takes follows from where its ranks sit; the order of a cluster's groups never matters.
#include <gtest/gtest.h>

#include <fstream>

#include <fmt/format.h>

#include "lockstep/base/file.h"
#include "lockstep/cost/flops.h"
#include "lockstep/cost/pricer/pricer.h"
#include "lockstep/cost/profile/profile.h"
#include "lockstep/cost/stage_content.h"
#include "lockstep/plan/layout.h"
#include "lockstep/spec/hf_config.h"
#include "lockstep/spec/usual_precision.h"

namespace lockstep::cost {
namespace {

spec::Cluster cluster_of(const std::string& groups) {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "cluster.yaml").string();
  std::ofstream(file) << "groups:\n" << groups;
  spec::Cluster cluster = spec::load_cluster(file);
  cluster.name = "cluster";
  return cluster;
}

Price price_of(const spec::Cluster& cluster, const std::string& layout, std::int64_t micro = 2,
               std::int64_t accumulation = 32, const std::string& model = "gpt-10b") {
  const Pricer pricer(spec::load_model(model), cluster, profile_for(cluster), {.sequence_length = 2048});
  const plan::Layout parsed = plan::parse_layout(layout);
  return pricer.price(parsed, {.micro = micro,
                               .accumulation = accumulation,
                               .global_sequences = micro * accumulation * parsed.data_ranks(),
                               .sequence_length = 2048});
}

spec::Cluster ethernet(const std::string& bandwidth) {
  return cluster_of(fmt::format(
      "  - {{kind: A100, nodes: 2, nic: {{kind: ethernet, bandwidth: {}}}, nics_per_node: 1}}\n", bandwidth));
}

TEST(Placement, stages_smaller_than_a_node_pay_for_the_border_between_nodes) {
  const std::string layout = "pp=4,shard=4,zero=1,recompute=selective";
  const Price fast = price_of(ethernet("200Gb/s"), layout, 2, 128);
  const Price slow = price_of(ethernet("1Gb/s"), layout, 2, 128);
  // Both directions of 128 micro-batches of 2 x 2048 x 4096 values of two bytes, of four ranks through one port.
  const double least = 2 * 128 * (2.0 * 2048 * 4096 * 2) * 4 / 0.125e9;
  EXPECT_GT(slow.time.pp_comm, 0.5 * least);
  EXPECT_LT(fast.time.pp_comm, 0.05 * least);
}

TEST(Placement, a_slower_link_never_makes_a_step_faster) {
  const char* const layouts[] = {"pp=4,shard=4,zero=1",
                                 "pp=2,shard=8,zero=1",
                                 "pp=8,shard=2,zero=1",
                                 "shard=16,zero=3",
                                 "tp=8,shard=2,zero=1",
                                 "tp=4,pp=2,shard=2,zero=1",
                                 "tp=16",
                                 "tp=2,cp=2,shard=4,zero=2"};
  for (const char* layout : layouts) {
    double before = 0;
    for (const int gigabits : {800, 400, 200, 100, 50, 25, 10, 5, 1}) {
      const double step = price_of(ethernet(fmt::format("{}Gb/s", gigabits)), layout).step_seconds();
      EXPECT_GE(step, before) << layout << " at " << gigabits << " Gb/s";
      before = step;
    }
  }
}

constexpr const char* kFast = "  - {kind: A100, nodes: 2}\n";
constexpr const char* kSlow =
    "  - {kind: A100, nodes: 2, intra: {kind: pcie, bandwidth: 25GB/s}, nic: {kind: ethernet, bandwidth: 100Gb/s}, "
    "nics_per_node: 1}\n";
constexpr const char* kOld = "  - {kind: V100, nodes: 2}\n";

TEST(Placement, order_of_groups_in_a_file_changes_nothing) {
  for (const auto& [one, other] : {std::pair(kFast, kSlow), std::pair(kFast, kOld), std::pair(kOld, kSlow)}) {
    const spec::Cluster a = cluster_of(std::string(one) + other), b = cluster_of(std::string(other) + one);
    EXPECT_EQ(a, b);
    EXPECT_EQ(profile_for(a).fitted->hardware, profile_for(b).fitted->hardware);
  }
}

TEST(Placement, a_stage_over_unlike_groups_goes_at_the_pace_of_the_slower_links) {
  const std::string layout = "dp=4,shard=4,zero=2,tp=2,sequence_parallel=true,recompute=selective";
  const Price mixed = price_of(cluster_of(std::string(kFast) + kSlow), layout, 4);
  const std::string all_slow = std::string(kSlow).replace(std::string(kSlow).find("nodes: 2"), 8, "nodes: 4");
  const Price slow = price_of(cluster_of(all_slow), layout, 4);
  EXPECT_GE(mixed.time.tp_comm, 0.99 * slow.time.tp_comm);
  EXPECT_GE(mixed.time.dp_comm, 0.99 * slow.time.dp_comm);
}

TEST(Placement, a_faster_group_beside_a_slow_one_never_hurts) {
  const std::string layout = "dp=4,shard=4,zero=2,tp=2,sequence_parallel=true,recompute=selective";
  const std::string all_slow = std::string(kSlow).replace(std::string(kSlow).find("nodes: 2"), 8, "nodes: 4");
  const double slow = price_of(cluster_of(all_slow), layout, 4).step_seconds();
  EXPECT_LE(price_of(cluster_of(std::string(kFast) + kSlow), layout, 4).step_seconds(), 1.001 * slow);
}

TEST(Placement, risk_is_that_of_the_stage_that_is_fullest) {
  // The large devices are fuller by share, the small ones by bytes of headroom.
  const spec::Cluster mixed =
      cluster_of("  - {kind: A100, nodes: 1}\n  - {kind: A10G, nodes: 1, devices_per_node: 8}\n");
  const std::string layout = "pp=2,shard=8,zero=1,stage_layers=38+12,recompute=selective";
  const Pricer pricer(spec::load_model("gpt-10b"), mixed, profile_for(mixed), {.sequence_length = 2048});
  const plan::Layout parsed = plan::parse_layout(layout);
  const plan::BatchPlan batch{.micro = 1, .accumulation = 8, .global_sequences = 64, .sequence_length = 2048};
  double fullest = 0;
  for (const StagePrice& stage : pricer.stages(parsed, batch)) fullest = std::max(fullest, stage.memory.fill());
  EXPECT_DOUBLE_EQ(pricer.price(parsed, batch).memory.fill(), fullest);
}

TEST(ModelFlops, are_those_of_the_architecture) {
  const spec::Model mamba = spec::load_model("mamba-2.8b");
  EXPECT_DOUBLE_EQ(mfu_flops_per_token(mamba, 131072), mfu_flops_per_token(mamba, 2048)) << "no attention";
  const double parameters = static_cast<double>(spec::active_parameter_count_without_input_embedding(mamba));
  const double scanned = static_cast<double>(mamba.layers * mamba.expand * mamba.hidden * mamba.state_size);
  EXPECT_DOUBLE_EQ(mfu_flops_per_token(mamba, 2048), 6 * parameters + 27 * scanned);
  const spec::Model bert = spec::load_model("bert-large");
  const double hidden = static_cast<double>(bert.layers * bert.hidden);
  EXPECT_DOUBLE_EQ(mfu_flops_per_token(bert, 512) - mfu_flops_per_token(bert, 256), 12 * hidden * 256)
      << "tokens see both sides";
}

TEST(ModelFlops, count_heads_as_wide_as_they_are_and_the_keys_that_windows_leave) {
  const spec::Model gemma = spec::load_model("gemma2-9b");
  const double width = static_cast<double>(gemma.layers * gemma.heads * gemma.head_dim);
  ASSERT_NE(gemma.heads * gemma.head_dim, gemma.hidden);
  ASSERT_EQ(gemma.decoder.sliding_window, 4096);
  EXPECT_NEAR(mfu_flops_per_token(gemma, 4096) - mfu_flops_per_token(gemma, 2048), 6 * width * 2048, 1e-6 * width);
  // Half of the layers see a window: 4096 keys but for the first 4096 tokens, which see half of them.
  EXPECT_NEAR(mfu_flops_per_token(gemma, 16384) - mfu_flops_per_token(gemma, 4096),
              12 * width * ((8192.0 + 4096 * (1 - 1.0 / 8)) / 2 - 2048), 1e-6 * width);
}

constexpr const char* kDeepseekV3 = R"({"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
    "kv_lora_rank": 512, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "first_k_dense_replace": 3, "max_position_embeddings": 163840, "vocab_size": 129280})";

TEST(LatentAttention, is_counted_by_its_own_products) {
  const spec::Model model = spec::parse_hf_config(kDeepseekV3, "deepseek-v3/config.json");
  const double active = static_cast<double>(spec::active_parameter_count_without_input_embedding(model));
  // Keys of 192 elements, values of 128.
  EXPECT_DOUBLE_EQ(mfu_flops_per_token(model, 4096), 6 * active + 6.0 * 61 * 128 * 160 * 4096);
  // The narrow products and their norms are whole on every tensor-parallel rank, all else is split.
  const Dimensions d = dimensions_of(model);
  const double narrow = 7168.0 * (1536 + 512 + 64) + 1536 + 512;
  plan::Layout layout;
  const double whole = dense_parameters_on_rank(d, layout, 0, 61);
  layout.tp = 8;
  EXPECT_NEAR(dense_parameters_on_rank(d, layout, 0, 61), 61 * narrow + (whole - 61 * narrow) / 8, 1);
}

TEST(LatentAttention, is_priced_with_its_memory) {
  spec::Model model = spec::parse_hf_config(kDeepseekV3, "deepseek-v3/config.json");
  const spec::Cluster cluster = spec::load_cluster("32x8xH100");
  const plan::Layout layout = plan::parse_layout("pp=16,shard=16,ep=16,zero=1,recompute=selective");
  const plan::BatchPlan batch{.micro = 1, .accumulation = 32, .global_sequences = 512, .sequence_length = 4096};
  const auto price = [&] {
    return Pricer(model, cluster, profile_for(cluster), {.sequence_length = 4096}).price(layout, batch);
  };
  const Price latent = price();
  EXPECT_GT(latent.time.compute, 0);
  // The same heads without the narrow products: more parameters, more work.
  model.decoder.key_value_rank = model.decoder.query_rank = model.decoder.value_dim = 0;
  const Price plain = price();
  EXPECT_LT(latent.time.compute, plain.time.compute);
  EXPECT_LT(latent.memory.optimizer, plain.memory.optimizer);
}

TEST(Precision, of_every_V100_is_fp16) {
  for (const char* kind : {"4x8xV100", "4x1xV100-16"})
    EXPECT_EQ(spec::usual_precision(spec::load_cluster(kind)), spec::Precision::kFp16) << kind;
}

}  // namespace
}  // namespace lockstep::cost
