// Random small models on random small clusters, from a fixed seed: a search never crashes, its answers are valid, and
// the bounds that its pruning rests on hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/planner/search/search.h"
#include "lockstep/planner/search/space.h"
#include "tests/planner/small_requests.h"

namespace lockstep::planner {
namespace {

constexpr int kCases = 200;

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  template <class Value>
  Value pick(std::initializer_list<Value> values) {
    return *(values.begin() + between(0, static_cast<std::int64_t>(values.size()) - 1));
  }

 private:
  std::mt19937_64 engine_;  // its numbers are the same everywhere; those of the distributions are not
};

spec::Model random_model(Dice& dice) {
  using spec::Arch;
  const Arch arch =
      dice.pick({Arch::kGpt, Arch::kLlama, Arch::kLlama, Arch::kMoe, Arch::kMamba, Arch::kBert, Arch::kResNet});
  if (arch == Arch::kResNet) return spec::load_model(dice.pick({"resnet18", "resnet50"}));
  spec::Model model = spec::load_model(arch == Arch::kGpt     ? "gpt2-124m"
                                       : arch == Arch::kLlama ? "llama2-7b"
                                       : arch == Arch::kMoe   ? "mixtral-8x7b"
                                       : arch == Arch::kMamba ? "mamba-130m"
                                                              : "bert-base");
  model.name = "random";
  model.layers = dice.between(1, 14);
  model.vocab = dice.between(100, 60000);
  model.max_sequence = dice.pick({64, 100, 512, 2048, 8192});
  if (arch == Arch::kMamba) return model;
  model.heads = dice.pick({1, 2, 3, 4, 6, 8, 12, 16, 40});
  model.kv_heads = model.heads;
  if (arch == Arch::kLlama || arch == Arch::kMoe) {
    const std::vector<std::int64_t> parts = divisors(model.heads);
    model.kv_heads = parts[static_cast<std::size_t>(dice.between(0, static_cast<std::int64_t>(parts.size()) - 1))];
  }
  model.head_dim = dice.pick({32, 64, 80, 128});
  model.hidden = model.heads * model.head_dim;
  model.ffn_hidden = model.hidden * dice.between(2, 4);
  if (arch == Arch::kMoe) {
    model.experts = dice.pick({2, 3, 4, 8, 16});
    model.experts_per_token = dice.between(1, 2);
    model.shared_experts = dice.between(0, 1);
  }
  return model;
}

spec::Cluster random_cluster(Dice& dice) {
  const auto group = [&] {
    return spec::load_cluster(fmt::format("{}x{}x{}", dice.pick({1, 1, 2, 3}), dice.pick({1, 2, 3, 4, 8}),
                                          dice.pick({"H100", "A100", "V100", "A10G", "MI300X"})));
  };
  spec::Cluster cluster = group();
  if (dice.between(0, 2) == 0) {
    cluster.groups.push_back(group().groups.front());
    cluster.between_groups = {.kind = spec::LinkKind::kEthernet, .bytes_per_second = 1e9, .latency_seconds = 1e-4};
  }
  // From plenty to nothing fits.
  const double shrink = std::pow(2.0, -static_cast<double>(dice.between(0, 6)));
  for (spec::NodeGroup& part : cluster.groups) part.device.memory_bytes *= shrink;
  return cluster;
}

SearchRequest random_request(Dice& dice) {
  SearchRequest request;
  request.model = random_model(dice);
  request.cluster = random_cluster(dice);
  request.profile = cost::profile_for(request.cluster.groups.front().device.kind);
  request.global_sequences = dice.between(1, 96);
  request.objective = dice.pick(
      {Objective::kThroughput, Objective::kThroughput, Objective::kGoodput, Objective::kDollars, Objective::kDeadline});
  request.tokens = 1e9;
  request.deadline_seconds = 3600;
  request.constraints.allow_idle_devices = dice.between(0, 3) == 0;
  if (dice.between(0, 3) == 0) request.constraints.at_most["tp"] = dice.between(1, 4);
  if (dice.between(0, 3) == 0) request.constraints.at_most["zero"] = dice.between(0, 3);
  if (dice.between(0, 7) == 0) request.constraints.recompute = plan::Recompute::kFull;
  return request;
}

void expect_valid(const Ranked& ranked, const SearchRequest& request) {
  const plan::Layout& layout = ranked.layout;
  EXPECT_EQ(plan::find_layout_problem(layout, &request.model), std::nullopt) << plan::to_string(layout);
  EXPECT_LE(layout.world(), request.cluster.devices());
  EXPECT_EQ(ranked.batch.micro * ranked.batch.accumulation * layout.data_ranks(), request.global_sequences);
  EXPECT_TRUE(std::isfinite(ranked.price.step_seconds()) && ranked.price.step_seconds() > 0)
      << plan::to_string(layout) << " takes " << ranked.price.step_seconds();
  EXPECT_TRUE(std::isfinite(ranked.price.memory.total()) && ranked.price.memory.total() > 0);
  EXPECT_EQ(plan::parse_layout(plan::to_string(layout)), layout);
}

TEST(SearchProperty, never_crashes_and_every_result_is_valid) {
  Dice dice(20240607);
  int answered = 0, nothing_fits = 0, refused = 0;
  for (int i = 0; i < kCases; ++i) {
    SCOPED_TRACE(fmt::format("case {}", i));
    const SearchRequest request = random_request(dice);
    try {
      const SearchResult result = search(request);
      (result.best.empty() ? nothing_fits : answered) += 1;
      EXPECT_EQ(result.best.empty(), result.summary.feasible == 0);
      EXPECT_NE(result.best.empty(), result.nearest.empty());
      for (const Ranked& ranked : result.best) {
        expect_valid(ranked, request);
        EXPECT_TRUE(ranked.price.fits());
        EXPECT_LE(ranked.price.out_of_memory_probability(), request.constraints.largest_out_of_memory_probability);
      }
      for (const Ranked& ranked : result.pareto) expect_valid(ranked, request);
      for (const Ranked& ranked : result.nearest) expect_valid(ranked, request);
      for (const auto& [family, ranked] : result.best_of_family) expect_valid(ranked, request);
    } catch (const UserError& error) {
      ++refused;
      EXPECT_EQ(error.code(), ExitCode::kUsage) << error.what();
    }
  }
  EXPECT_GT(answered, kCases / 2);
  EXPECT_GT(nothing_fits, 0);
  EXPECT_LT(refused, kCases / 4);
}

TEST(SearchProperty, pruning_never_changes_the_answer) {
  Dice dice(7);
  for (int i = 0; i < kCases / 4; ++i) {
    SCOPED_TRACE(fmt::format("case {}", i));
    SearchRequest request = random_request(dice);
    request.threads = 1;
    try {
      const SearchResult pruned = search(request);
      request.switched_off = {"floor", "outgrow"};
      request.threads = 2;
      const SearchResult full = search(request);
      ASSERT_EQ(pruned.summary.feasible, full.summary.feasible);
      ASSERT_EQ(pruned.best.size(), full.best.size());
      for (std::size_t k = 0; k < full.best.size(); ++k) {
        EXPECT_EQ(pruned.best[k].layout, full.best[k].layout);
        EXPECT_EQ(pruned.best[k].score, full.best[k].score);
      }
    } catch (const UserError&) {
      continue;  // a contradiction, the same with and without pruning
    }
  }
}

// What the floor and outgrow passes rest on.
TEST(SearchProperty, memory_never_falls_below_the_floor_nor_with_a_larger_micro_batch) {
  Dice dice(11);
  std::int64_t checked = 0;
  for (int i = 0; i < kCases / 4; ++i) {
    SearchRequest request = random_request(dice);
    request.objective = Objective::kThroughput;
    request = complete(request);
    const Space space(request);
    const cost::Pricer pricer(request.model, request.cluster, request.profile,
                              {.sequence_length = request.sequence_length, .optimizer = request.optimizer});
    const std::array offloads{plan::Offload::kNone, plan::Offload::kOptimizer, plan::Offload::kParameters};
    for (const plan::Layout& mesh : space.meshes(offloads)) {
      if (dice.between(0, 9) != 0 || space.find_problem(mesh)) continue;
      const double floor = pricer.memory_floor(mesh);
      plan::Layout scratch = mesh;
      double before = 0;
      bool fitted_before = true;
      plan::Layout layout_before;
      space.for_each(scratch, [&](const plan::Layout& layout, const plan::BatchPlan& batch, const Choice&) {
        const cost::Price price = pricer.price(layout, batch);
        const bool grown = layout == layout_before;  // otherwise another choice begins
        if (request.cluster.groups.size() == 1) {
          EXPECT_GE(price.memory.total(), floor * (1 - 1e-12)) << plan::to_string(layout);
          if (grown) {
            EXPECT_GE(price.memory.total(), before * (1 - 1e-12)) << plan::to_string(layout);
          }
        }
        if (grown && !fitted_before) {
          EXPECT_FALSE(price.fits()) << plan::to_string(layout);
        }
        before = price.memory.total();
        fitted_before = price.fits();
        layout_before = layout;
        ++checked;
        return true;
      });
    }
  }
  EXPECT_GT(checked, 10000);
}

}  // namespace
}  // namespace lockstep::planner
