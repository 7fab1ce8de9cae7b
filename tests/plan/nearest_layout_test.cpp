#include "lockstep/plan/nearest_layout.h"

#include <gtest/gtest.h>

#include <random>

#include "lockstep/base/error.h"

namespace lockstep::plan {
namespace {

spec::Model gpt(std::int64_t heads = 16, std::int64_t layers = 24) {
  spec::Model model;
  model.name = "gpt2-355m";
  model.arch = spec::Arch::kGpt;
  model.layers = layers;
  model.hidden = 64 * heads;
  model.heads = model.kv_heads = heads;
  model.head_dim = 64;
  model.ffn_hidden = 4 * model.hidden;
  return model;
}

spec::Model mixtral() {
  spec::Model model = gpt(32, 32);
  model.name = "mixtral";
  model.arch = spec::Arch::kMoe;
  model.kv_heads = 8;
  model.experts = 8;
  model.experts_per_token = 2;
  return model;
}

spec::Model mamba() {
  spec::Model model;
  model.name = "mamba";
  model.arch = spec::Arch::kMamba;
  model.layers = 24;
  model.hidden = 768;
  model.expand = 2;
  return model;
}

spec::Model resnet() {
  spec::Model model;
  model.name = "resnet50";
  model.arch = spec::Arch::kResNet;
  return model;
}

// As a file says it: parse_layout() refuses what is wrong by itself, a Layout may be anything.
Layout with(std::initializer_list<std::pair<std::int64_t Layout::*, std::int64_t>> axes) {
  Layout layout;
  for (const auto& [axis, value] : axes) layout.*axis = value;
  if (layout.shard > 1) layout.zero = 3;
  if (layout.pp > 1) layout.schedule = Schedule::kOneForwardOneBackward;
  return layout;
}

std::string nearest(const Layout& wanted, const spec::Model& model, std::int64_t ranks) {
  const auto found = nearest_valid_layout(wanted, model, ranks);
  return found ? to_string(*found) : "none";
}

std::string problem_of(const Layout& layout, const spec::Model& model) {
  return find_layout_problem(layout, &model).value_or("");
}

void expect_problem(const Layout& layout, const spec::Model& model, const std::string& part) {
  EXPECT_NE(problem_of(layout, model).find(part), std::string::npos)
      << to_string(layout) << ": \"" << problem_of(layout, model) << '"';
}

// --- The nearest layout
TEST(NearestLayout, of_one_that_works_is_itself) {
  const Layout layout = parse_layout("pp=2,dp=2,shard=2,tp=4,virtual_stages=3,recompute=full,precision=bf16");
  EXPECT_EQ(nearest_valid_layout(layout, gpt(), 32), layout);
}

TEST(NearestLayout, changes_the_one_axis_that_is_wrong) {
  EXPECT_EQ(nearest(with({{&Layout::dp, 2}, {&Layout::tp, 3}}), gpt(), 4), "dp=2,tp=2");
  EXPECT_EQ(nearest(with({{&Layout::pp, 2}, {&Layout::tp, 5}}), gpt(), 8), "pp=2,tp=4");
  EXPECT_EQ(nearest(with({{&Layout::dp, 2}, {&Layout::shard, 3}}), gpt(), 8), "dp=2,shard=4");
}

TEST(NearestLayout, where_two_must_change_changes_them_least) {
  EXPECT_EQ(nearest(with({{&Layout::dp, 2}, {&Layout::tp, 3}}), gpt(), 6), "dp=3,tp=2");
  EXPECT_EQ(nearest(with({{&Layout::tp, 3}}), gpt(), 3), "dp=3");
}

TEST(NearestLayout, has_no_more_stages_than_layers) {
  EXPECT_EQ(nearest(with({{&Layout::pp, 8}}), gpt(16, 4), 8), "pp=4,dp=2");
  Layout chunks = with({{&Layout::pp, 4}, {&Layout::virtual_stages, 8}});
  chunks.schedule = Schedule::kInterleaved;
  EXPECT_EQ(nearest(chunks, gpt(), 4), "pp=4,virtual_stages=6");
}

TEST(NearestLayout, splits_experts_as_they_divide) {
  EXPECT_EQ(nearest(with({{&Layout::dp, 8}, {&Layout::ep, 3}}), mixtral(), 8), "dp=8,ep=4");
  EXPECT_EQ(nearest(with({{&Layout::dp, 8}, {&Layout::ep, 2}}), gpt(), 8), "dp=8");
  EXPECT_EQ(nearest(with({{&Layout::dp, 6}, {&Layout::ep, 8}}), mixtral(), 8), "dp=8,ep=8");
}

TEST(NearestLayout, keeps_the_zero_stage_and_the_schedule_where_they_still_make_sense) {
  Layout wanted = parse_layout("shard=3,zero=2,tp=2,recompute=selective");
  EXPECT_EQ(nearest(wanted, gpt(), 8), "shard=4,zero=2,tp=2,recompute=selective");
  wanted = parse_layout("pp=3,schedule=zero_bubble,virtual_stages=2");
  EXPECT_EQ(nearest(wanted, gpt(), 4), "pp=4,virtual_stages=2,schedule=zero_bubble");
  wanted = parse_layout("pp=2,tp=3,stage_layers=13+11");
  EXPECT_EQ(nearest(wanted, gpt(), 4), "pp=2,tp=2,stage_layers=13+11");
}

TEST(NearestLayout, gives_up_what_no_longer_makes_sense) {
  EXPECT_EQ(nearest(parse_layout("tp=2,sequence_parallel=true"), gpt(), 1), "dp=1");
  EXPECT_EQ(nearest(parse_layout("shard=8"), gpt(), 1), "dp=1");
  EXPECT_EQ(nearest(parse_layout("pp=4,virtual_stages=2"), gpt(), 1), "dp=1");
  EXPECT_EQ(nearest(parse_layout("cp=2,context_exchange=all_to_all"), mamba(), 2), "cp=2");
  EXPECT_EQ(nearest(parse_layout("pp=2,dp=2,tp=2"), resnet(), 8), "dp=8");
}

TEST(NearestLayout, of_no_ranks_is_none) {
  EXPECT_EQ(nearest(Layout(), gpt(), 0), "none");
  EXPECT_EQ(nearest(Layout(), gpt(), -1), "none");
}

TEST(NearestLayout, always_works_and_has_the_ranks) {
  std::mt19937 random(7);
  const auto up_to = [&](std::int64_t most) {
    return 1 + static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(most));
  };
  for (int trial = 0; trial < 300; ++trial) {
    Layout wanted;
    for (const auto axis :
         {&Layout::pp, &Layout::dp, &Layout::shard, &Layout::cp, &Layout::tp, &Layout::ep, &Layout::virtual_stages}) {
      wanted.*axis = up_to(9) - 1;
    }
    wanted.zero = up_to(5) - 1;
    wanted.schedule = static_cast<Schedule>(random() % 5);
    wanted.context_exchange = static_cast<ContextExchange>(random() % 2);
    wanted.sequence_parallel = random() % 2 == 0;
    for (const spec::Model& model : {gpt(), mixtral(), mamba(), resnet()}) {
      const std::int64_t ranks = up_to(96);
      const auto found = nearest_valid_layout(wanted, model, ranks);
      ASSERT_TRUE(found) << to_string(wanted) << " on " << ranks;
      EXPECT_EQ(problem_of(*found, model), "");
      EXPECT_EQ(found->world(), ranks);
    }
  }
}

TEST(NearestLayout, is_quick_for_many_ranks) {
  EXPECT_EQ(nearest(with({{&Layout::pp, 8}, {&Layout::dp, 128}, {&Layout::tp, 5}}), gpt(), 4096), "pp=8,dp=128,tp=4");
}

// --- Rules that the engine needs
TEST(LayoutRules, experts_and_sharded_ranks_divide_each_other) {
  Layout layout = with({{&Layout::dp, 4}, {&Layout::shard, 6}, {&Layout::ep, 4}});
  expect_problem(layout, mixtral(), "ep=4 and shard x cp = 6");
  layout = parse_layout("dp=2,shard=6,zero=1,ep=2");
  EXPECT_EQ(problem_of(layout, mixtral()), "") << "three ranks share the state of an expert";
  layout = parse_layout("dp=4,shard=2,ep=8");
  EXPECT_EQ(problem_of(layout, mixtral()), "") << "an expert is on one rank, its sharding group is part of ep";
  layout = parse_layout("dp=6,cp=2,ep=4");
  EXPECT_EQ(problem_of(layout, mixtral()), "") << "nothing is sharded";
}

TEST(LayoutRules, all_to_all_deals_key_value_heads_out_too) {
  spec::Model model = mixtral();  // 32 heads, 8 key/value heads
  EXPECT_EQ(problem_of(parse_layout("tp=2,cp=4,context_exchange=all_to_all"), model), "");
  EXPECT_EQ(problem_of(parse_layout("tp=8,cp=4,context_exchange=all_to_all"), model), "") << "one is shared by four";
  EXPECT_EQ(problem_of(parse_layout("cp=16,context_exchange=all_to_all"), model), "") << "each is shared by two";
  model.kv_heads = 6;
  model.heads = 24;
  model.ffn_hidden = 24 * 256;
  expect_problem(parse_layout("cp=4,context_exchange=all_to_all"), model, "6 key/value heads");
  EXPECT_EQ(problem_of(parse_layout("cp=4"), model), "") << "a ring does not mind";
}

TEST(LayoutRules, mamba_splits_its_inner_channels_and_hands_its_state_on) {
  EXPECT_EQ(problem_of(parse_layout("tp=3,cp=2"), mamba()), "");
  expect_problem(parse_layout("tp=7"), mamba(), "1536 inner channels");
  expect_problem(parse_layout("cp=2,context_exchange=all_to_all"), mamba(), "use ring");
}

TEST(LayoutRules, image_models_are_only_data_parallel) {
  EXPECT_EQ(problem_of(parse_layout("dp=2,shard=4,zero=2"), resnet()), "");
  for (const char* text : {"tp=2", "cp=2", "pp=2", "dp=2,ep=2"}) {
    EXPECT_NE(problem_of(parse_layout(text), resnet()), "") << text;
  }
}

TEST(LayoutRules, a_classifier_over_one_token_has_no_context_ranks) {
  spec::Model bert = gpt(12, 12);
  bert.arch = spec::Arch::kBert;
  EXPECT_EQ(problem_of(parse_layout("cp=2"), bert), "");
  bert.classes = 2;
  expect_problem(parse_layout("cp=2"), bert, "one token");
}

TEST(LayoutRules, zero_bubble_has_at_most_two_chunks_per_rank) {
  EXPECT_THROW(parse_layout("pp=2,virtual_stages=3,schedule=zero_bubble"), UserError);
  EXPECT_NO_THROW(parse_layout("pp=2,virtual_stages=2,schedule=zero_bubble"));
}

}  // namespace
}  // namespace lockstep::plan
