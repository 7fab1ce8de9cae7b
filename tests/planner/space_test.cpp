#include "lockstep/planner/search/space.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/planner/search/stage_split.h"
#include "tests/base/expect_user_error.h"
#include "tests/planner/naive_space.h"
#include "tests/planner/small_requests.h"

namespace lockstep::planner {
namespace {

using lockstep::testing::user_error;
using testing::request_of;

std::string text_of(const plan::Layout& layout, const plan::BatchPlan& batch) {
  return fmt::format("{} micro={} accumulation={}", plan::to_string(layout), batch.micro, batch.accumulation);
}

std::vector<plan::Layout> valid_meshes(const Space& space) {
  std::vector<plan::Layout> meshes = space.meshes(std::array{plan::Offload::kNone});
  std::erase_if(meshes, [&](const plan::Layout& mesh) { return space.find_problem(mesh).has_value(); });
  return meshes;
}

class SpaceOf : public ::testing::TestWithParam<testing::SmallCase> {};

TEST_P(SpaceOf, holds_exactly_the_candidates_of_a_naive_nested_loop_each_once) {
  const SearchRequest request = complete(testing::small_request(GetParam()));
  std::set<std::string> expected, found;
  testing::visit_naively(request, [&](const plan::Layout& layout, const plan::BatchPlan& batch) {
    expected.insert(text_of(layout, batch));
  });
  const Space space(request);
  std::int64_t counted = 0, visited = 0;
  for (const plan::Layout& mesh : valid_meshes(space)) {
    counted += space.count(mesh);
    plan::Layout scratch = mesh;
    space.for_each(scratch, [&](const plan::Layout& layout, const plan::BatchPlan& batch, const Choice& choice) {
      ++visited;
      found.insert(text_of(layout, batch));
      const auto [again, again_batch] = space.expand(mesh, choice);
      EXPECT_EQ(again, layout);
      EXPECT_EQ(again_batch, batch);
      return true;
    });
  }
  EXPECT_GT(expected.size(), 10u);
  EXPECT_EQ(found, expected);
  EXPECT_EQ(visited, static_cast<std::int64_t>(found.size())) << "a candidate came twice";
  EXPECT_EQ(counted, visited);
}
INSTANTIATE_TEST_SUITE_P(Small, SpaceOf, ::testing::ValuesIn(testing::kSmallCases),
                         [](const auto& each) { return std::string(each.param.name); });

TEST(Space, leaves_out_larger_micro_batches_when_told_so_and_counts_them) {
  const SearchRequest request = complete(request_of("gpt2-124m", "1x2xH100", 8));
  const Space space(request);
  for (const plan::Layout& mesh : valid_meshes(space)) {
    plan::Layout scratch = mesh;
    std::int64_t visited = 0;
    const std::int64_t left_out =
        space.for_each(scratch, [&](const plan::Layout&, const plan::BatchPlan&, const Choice&) {
          ++visited;
          return false;
        });
    EXPECT_EQ(visited + left_out, space.count(mesh)) << plan::to_string(mesh);
    EXPECT_GT(left_out, 0);
  }
}

TEST(Space, the_leanest_choice_is_one_of_the_mesh) {
  const SearchRequest request = complete(request_of("gpt2-124m", "1x8xH100", 16));
  const Space space(request);
  for (const plan::Layout& mesh : valid_meshes(space)) {
    const auto [layout, batch] = space.expand(mesh, space.leanest(mesh));
    EXPECT_FALSE(plan::find_layout_problem(layout, &request.model)) << plan::to_string(layout);
    EXPECT_EQ(layout.recompute, plan::Recompute::kFull);
  }
}

TEST(Space, idle_devices_are_allowed_only_where_asked_for) {
  SearchRequest request = complete(request_of("gpt2-124m", "2x8xH100", 16));
  EXPECT_EQ(Space(request).worlds(), (std::vector<std::int64_t>{16}));
  request.constraints.allow_idle_devices = true;
  EXPECT_EQ(Space(request).worlds(), (std::vector<std::int64_t>{16, 8, 4, 2, 1}));
}

TEST(Bounds, refuse_what_is_unknown_or_contradicts_itself) {
  Constraints constraints;
  constraints.fixed = {{"shrad", 8}};
  EXPECT_HAS(user_error([&] { Bounds{constraints}; }), "did you mean `shard`");
  constraints.fixed = {{"tp", 0}};
  EXPECT_HAS(user_error([&] { Bounds{constraints}; }), "tp=0");
  constraints.fixed = {{"tp", 8}};
  constraints.at_most = {{"tp", 4}};
  EXPECT_HAS(user_error([&] { Bounds{constraints}; }), "at most 4");
}

TEST(StageSplit, deals_layers_so_that_the_slowest_stage_is_fastest) {
  const std::vector<StageLoad> embedding_and_head{{1, 1}, {1, 0}, {1, 0}, {1, 1}};
  EXPECT_EQ(balance_layers(126, embedding_and_head), (std::vector<std::int64_t>{31, 32, 32, 31}));
  const std::vector<StageLoad> fast_and_slow{{3, 0}, {1, 0}};
  EXPECT_EQ(balance_layers(32, fast_and_slow), (std::vector<std::int64_t>{24, 8}));
  EXPECT_EQ(balance_layers(2, fast_and_slow), (std::vector<std::int64_t>{1, 1}));
}

TEST(StageSplit, no_split_beats_the_balanced_one) {
  // All ways to deal 9 layers to 3 stages with unlike speeds and extras.
  const std::vector<StageLoad> loads{{1.0, 0.7}, {2.5, 0.0}, {1.5, 1.9}};
  double best = 1e300;
  for (std::int64_t a = 1; a <= 7; ++a) {
    for (std::int64_t b = 1; a + b <= 8; ++b) {
      best = std::min(best, slowest_stage(std::vector<std::int64_t>{a, b, 9 - a - b}, loads));
    }
  }
  EXPECT_DOUBLE_EQ(slowest_stage(balance_layers(9, loads), loads), best);
}

TEST(StageSplit, an_even_split_is_left_alone_where_nothing_beats_it) {
  const spec::Model model = spec::load_model("gpt3-175b");
  const spec::Cluster cluster = spec::load_cluster("8x8xH100");
  EXPECT_EQ(stage_splits(model, cluster, 2048, 64, 8, 1).size(), 1u) << "96 layers on 8 stages, a head of 0.4 layers";
  const auto splits = stage_splits(spec::load_model("llama3-405b"), cluster, 8192, 64, 16, 1);
  ASSERT_GT(splits.size(), 1u) << "126 layers + embedding + head = 16 x 8";
  EXPECT_TRUE(splits[0].empty());
  EXPECT_EQ(splits[1].front(), 7);
  EXPECT_EQ(splits[1].back(), 7);
  EXPECT_EQ(splits[1][1], 8);
}

TEST(StageSplit, unequal_devices_get_layers_in_proportion_to_their_speed) {
  const spec::Cluster cluster = testing::two_groups("H100", "A100", 1);
  const spec::Model model = spec::load_model("llama2-7b");
  const auto splits = stage_splits(model, cluster, 4096, 16, 2, 1);
  ASSERT_GT(splits.size(), 1u);
  const double speed = cluster.groups[0].device.peak_bf16_flops / cluster.groups[1].device.peak_bf16_flops;
  bool in_proportion = false;
  for (const auto& split : splits) {
    if (split.empty()) continue;
    EXPECT_EQ(std::accumulate(split.begin(), split.end(), std::int64_t{0}), model.layers);
    in_proportion |= std::abs(static_cast<double>(split[0]) / static_cast<double>(split[1]) - speed) < 0.2 * speed;
  }
  EXPECT_TRUE(in_proportion);
}

}  // namespace
}  // namespace lockstep::planner
