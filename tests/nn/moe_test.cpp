#include "lockstep/nn/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/nn/collectives.h"
#include "lockstep/nn/moe_capacity.h"
#include "moe_textbook.h"
#include "tests/parallel/ranks.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;
using namespace testing;

constexpr double kTolerance = 1e-12;

const std::vector<spec::Model> kModels = {small_moe(), balanced_moe(), tight_moe(), shared_moe()};

double distance(const Tensor& a, const Tensor& b) { return a.numel() == 0 ? 0 : (a - b).abs().max().item<double>(); }

void expect_same(const Result& actual, const Result& expected, const std::string& what) {
  EXPECT_LT(distance(actual.y, expected.y), kTolerance) << what;
  EXPECT_LT(distance(actual.dx, expected.dx), kTolerance) << what;
  EXPECT_NEAR(actual.auxiliary, expected.auxiliary, kTolerance) << what;
  EXPECT_EQ(actual.dropped, expected.dropped) << what;
  ASSERT_EQ(actual.gradients.size(), expected.gradients.size()) << what;
  for (const auto& [name, gradient] : expected.gradients) {
    ASSERT_TRUE(actual.gradients.count(name)) << what << ", " << name;
    EXPECT_LT(distance(actual.gradients.at(name), gradient), 10 * kTolerance) << what << ", " << name;
  }
}

struct Grid {
  std::vector<std::int64_t> samples;  // of each data rank
  int cp = 1, tp = 1, ep = 1;
  int ranks() const { return static_cast<int>(samples.size()) * cp * tp; }
  std::string name() const {
    return std::to_string(samples.size()) + " data ranks, cp " + std::to_string(cp) + ", tp " + std::to_string(tp) +
           ", ep " + std::to_string(ep);
  }
};

// Ranks in the order of the mesh: tp fastest, then cp, then data.
Partition partition_of(const Grid& grid, comm::Communicator& world) {
  const int tp = world.rank() % grid.tp, index = world.rank() / grid.tp, columns = grid.ranks() / grid.tp;
  const auto group = [&](int first, int count, int stride, const char* name) {
    std::vector<int> members;
    for (int i = 0; i < count; ++i) members.push_back(first + i * stride);
    return count > 1 ? world.subgroup(members, name) : comm::Communicator();
  };
  Partition partition;
  partition.tp = group(index * grid.tp, grid.tp, 1, "tp");
  partition.cp = group(index / grid.cp * grid.cp * grid.tp + tp, grid.cp, grid.tp, "cp");
  partition.ep = group(index / grid.ep * grid.ep * grid.tp + tp, grid.ep, grid.tp, "ep");
  partition.routing = group(tp, columns, grid.tp, "routing");
  return partition;
}

struct RankReport {
  MoeMlp::Routing routing;
  comm::Traffic ep_forward, ep, routing_group;
};

// Runs the batch on the grid's ranks, each with its samples and positions, and puts the pieces together.
class OnRanks {
 public:
  OnRanks(const spec::Model& spec, const Grid& grid, const Batch& batch)
      : spec_(spec), grid_(grid), batch_(batch), reports(static_cast<std::size_t>(grid.ranks())) {}

  Result run() {
    std::vector<std::int64_t> sizes = batch_.x.sizes().vec();
    sizes.insert(sizes.begin(), grid_.tp);
    result_.y = torch::full(sizes, std::nan(""), kDouble);
    result_.dx = torch::full(sizes, std::nan(""), kDouble);
    parallel::run_ranks(grid_.ranks(), [&](comm::Communicator world) {
      run_rank(partition_of(grid_, world), world.rank());
      world.barrier().wait();
    });
    return result_;
  }

 private:
  void run_rank(const Partition& partition, int rank) {
    const auto data = static_cast<std::size_t>(rank / grid_.tp / grid_.cp);
    const auto first_rank = grid_.samples.begin();
    const std::int64_t first = std::accumulate(first_rank, first_rank + static_cast<int>(data), std::int64_t{0});
    const std::int64_t samples = grid_.samples[data], seq = batch_.x.size(1);
    const Tensor positions = context_positions(seq, partition.cp_rank(), grid_.cp, grid_.cp > 1);
    const auto own = [&](const Tensor& whole) { return whole.narrow(0, first, samples).index_select(1, positions); };

    MoeMlp mlp(spec_, 0, partition, kDouble);
    initialise(mlp, kSeed);
    ForwardContext context;
    if (grid_.cp > 1) context.positions = positions;
    const Tensor x = own(batch_.x).requires_grad_();
    const MoeMlp::Output output = mlp.forward(enter_tensor_region(x, partition.tp, "tp: mlp input"), context);
    const Tensor y = leave_tensor_region(output.y, partition.tp, "tp: mlp output");
    RankReport& report = reports[static_cast<std::size_t>(rank)];
    if (partition.ep.valid()) report.ep_forward = partition.ep.traffic();
    Tensor loss = (y * own(batch_.meaning)).sum();
    if (output.auxiliary.defined()) loss = loss + output.auxiliary;
    loss.backward();
    report.routing = mlp.last_routing();
    if (partition.ep.valid()) report.ep = partition.ep.traffic();
    if (partition.routing.valid()) report.routing_group = partition.routing.traffic();

    const std::lock_guard lock(mutex_);
    const auto put = [&](Tensor& whole, const Tensor& part) {
      whole[partition.tp_rank()].narrow(0, first, samples).index_copy_(1, positions, part);
    };
    put(result_.y, y.detach());
    put(result_.dx, x.grad());
    if (output.auxiliary.defined()) result_.auxiliary += output.auxiliary.item<double>();
    if (partition.tp_rank() == 0) result_.dropped += mlp.last_routing().dropped;
    for (const DeclaredParameter& parameter : declared_parameters(mlp)) add_gradient(parameter);
  }

  void add_gradient(const DeclaredParameter& parameter) {
    Tensor& whole = result_.gradients[parameter.name];
    if (!whole.defined()) whole = torch::zeros(parameter.placement.whole, kDouble);
    ASSERT_TRUE(parameter.tensor.grad().defined()) << parameter.name;
    const Tensor part = parameter.tensor.grad().reshape({-1});
    for (const Run& run : runs_of(parameter.placement, 0, part.numel())) {
      whole.view({-1}).narrow(0, run.whole, run.count) += part.narrow(0, run.local, run.count);
    }
  }

  spec::Model spec_;
  Grid grid_;
  Batch batch_;
  std::mutex mutex_;
  Result result_;

 public:
  std::vector<RankReport> reports;
};

TEST(MoeMlp, is_the_textbook_formula_on_one_rank) {
  for (const spec::Model& spec : kModels) {
    const Batch batch = batch_of(3);
    const Result expected = Textbook(spec).run(batch);
    expect_same(OnRanks(spec, {{3}}, batch).run(), expected, spec::to_yaml(spec));
    EXPECT_EQ(expected.dropped > 0, spec.capacity_factor > 0);
  }
}

TEST(MoeMlp, gives_the_same_result_however_tokens_experts_and_widths_are_split) {
  const std::vector<Grid> grids = {
      {.samples = {2, 2}, .ep = 2},       {.samples = {1, 1, 1, 1}, .ep = 4},
      {.samples = {1, 1, 1, 1}, .ep = 2}, {.samples = {2, 1, 1}, .ep = 3},  // 2, 3 and 3 experts
      {.samples = {4}, .tp = 2},          {.samples = {3, 1}, .tp = 2, .ep = 2},
      {.samples = {4}, .cp = 2, .ep = 2}, {.samples = {1, 3}, .cp = 2, .ep = 4},
      {.samples = {1, 3}, .cp = 2},       {.samples = {4}, .cp = 2, .tp = 2, .ep = 2},
  };
  const Batch batch = batch_of(4);
  for (const spec::Model& spec : kModels) {
    const Result expected = Textbook(spec).run(batch);
    for (const Grid& grid : grids) {
      expect_same(OnRanks(spec, grid, batch).run(), expected, grid.name() + "\n" + spec::to_yaml(spec));
    }
  }
}

TEST(MoeMlp, drops_by_position_in_the_sequence_whichever_rank_holds_it) {
  const Batch batch = batch_of(1, 64);
  const Result expected = Textbook(tight_moe()).run(batch);
  for (const Grid& grid : {Grid{.samples = {1}, .cp = 2}, Grid{.samples = {1}, .cp = 4, .ep = 4}}) {
    expect_same(OnRanks(tight_moe(), grid, batch).run(), expected, grid.name());
  }
}

TEST(MoeMlp, works_when_a_rank_has_no_tokens) {
  const Batch batch = batch_of(3);
  for (const spec::Model& spec : kModels) {
    const Result expected = Textbook(spec).run(batch);
    for (const Grid& grid : {Grid{.samples = {3, 0}, .ep = 2}, Grid{.samples = {0, 3}, .tp = 2, .ep = 2},
                             Grid{.samples = {0, 2, 0, 1}, .ep = 4}}) {
      expect_same(OnRanks(spec, grid, batch).run(), expected, grid.name() + "\n" + spec::to_yaml(spec));
    }
  }
}

TEST(MoeMlp, works_when_no_rank_has_tokens) {
  for (const spec::Model& spec : kModels) {
    const Result result = OnRanks(spec, {.samples = {0, 0}, .ep = 2}, batch_of(0)).run();
    EXPECT_EQ(result.auxiliary, 0);
    for (const auto& [name, gradient] : result.gradients) EXPECT_EQ(gradient.abs().sum().item<double>(), 0) << name;
  }
}

TEST(MoeMlp, moves_the_rows_that_it_reports_and_a_count_for_every_expert) {
  const Grid grid{.samples = {2, 1}, .ep = 2};
  OnRanks ranks(small_moe(), grid, batch_of(3));
  ranks.run();
  const std::int64_t row_bytes = 6 * 8;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const RankReport& report = ranks.reports[rank];
    const std::int64_t sent = report.routing.rows_sent, received = report.routing.rows_received;
    EXPECT_EQ(sent, grid.samples[rank] * 8 * 2);  // every token twice
    std::int64_t for_own_experts = 0;
    for (const RankReport& other : ranks.reports) {
      const auto first = other.routing.per_expert.begin() + static_cast<int>(rank) * 4;
      for_own_experts += std::accumulate(first, first + 4, std::int64_t{0});
    }
    EXPECT_EQ(received, for_own_experts);
    const comm::Traffic::Entry forward = report.ep_forward[comm::OpKind::kAllToAll];
    EXPECT_EQ(forward.operations, 3);  // counts, dispatch, combine
    EXPECT_EQ(forward.bytes, 8 * 8 + (sent + received) * row_bytes);
    const comm::Traffic::Entry all = report.ep[comm::OpKind::kAllToAll];
    EXPECT_EQ(all.operations - forward.operations, 2);  // the gradients of both
    EXPECT_EQ(all.bytes - forward.bytes, (sent + received) * row_bytes);
    EXPECT_EQ(report.ep.total_bytes(), all.bytes);
  }
}

TEST(MoeMlp, asks_the_other_ranks_about_routing_only_for_losses_and_capacity) {
  const auto operations = [](const spec::Model& spec, comm::OpKind kind) {
    OnRanks ranks(spec, {.samples = {2, 1}}, batch_of(3));
    ranks.run();
    return ranks.reports[0].routing_group[kind].operations;
  };
  for (const comm::OpKind kind : {comm::OpKind::kAllReduce, comm::OpKind::kAllGather, comm::OpKind::kAllToAll}) {
    EXPECT_EQ(operations(small_moe(), kind), 0);
  }
  EXPECT_EQ(operations(balanced_moe(), comm::OpKind::kAllReduce), 1);
  EXPECT_EQ(operations(balanced_moe(), comm::OpKind::kAllGather), 0);
  EXPECT_EQ(operations(tight_moe(), comm::OpKind::kAllReduce), 1);
  EXPECT_EQ(operations(tight_moe(), comm::OpKind::kAllGather), 1);
}

TEST(MoeMlp, takes_the_lower_number_among_equally_probable_experts) {
  MoeMlp mlp(balanced_moe(), 0, {}, kDouble);
  initialise(mlp, kSeed);
  const torch::NoGradGuard no_grad;
  mlp.named_parameters()["gate.weight"].zero_();
  const MoeMlp::Output output = mlp.forward(batch_of(2).x, {});
  EXPECT_EQ(mlp.last_routing().per_expert, (std::vector<std::int64_t>{16, 16, 0, 0, 0, 0, 0, 0}));
  // Even probabilities cost the coefficient, and logsumexp of eight zeros is log 8.
  EXPECT_NEAR(output.auxiliary.item<double>(), 0.3 + 0.05 * std::log(8.0) * std::log(8.0), kTolerance);
}

TEST(MoeMlp, has_no_auxiliary_loss_outside_training) {
  MoeMlp mlp(balanced_moe(), 0, {}, kDouble);
  initialise(mlp, kSeed);
  EXPECT_FALSE(mlp.forward(batch_of(1).x, {.training = false}).auxiliary.defined());
  EXPECT_TRUE(mlp.forward(batch_of(1).x, {.training = true}).auxiliary.defined());
}

TEST(MoeMlp, in_bf16_routes_in_fp32_and_stays_near) {
  spec::Model spec = balanced_moe();
  MoeMlp exact(spec, 0, {}, kDouble), narrow(spec, 0, {}, torch::dtype(torch::kBFloat16));
  initialise(narrow, kSeed);
  {
    const torch::NoGradGuard no_grad;  // the same weights, already rounded
    for (const auto& entry : narrow.named_parameters()) {
      exact.named_parameters()[entry.key()].copy_(entry.value());
    }
  }
  const Tensor x = batch_of(2).x.to(torch::kBFloat16);
  const MoeMlp::Output a = narrow.forward(x, {}), b = exact.forward(x.to(torch::kDouble), {});
  EXPECT_EQ(narrow.last_routing().per_expert, exact.last_routing().per_expert);
  EXPECT_EQ(a.y.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(a.auxiliary.scalar_type(), torch::kFloat);
  EXPECT_LT(distance(a.y.to(torch::kDouble), b.y), 0.02 * b.y.abs().max().item<double>());
  (a.y.to(torch::kFloat).sum() + a.auxiliary).backward();
  (b.y.sum() + b.auxiliary).backward();
  for (const auto& entry : exact.named_parameters()) {
    const Tensor expected = entry.value().grad(), gradient = narrow.named_parameters()[entry.key()].grad();
    const double scale = expected.abs().max().item<double>();
    EXPECT_LE(distance(gradient.to(torch::kDouble), expected), 0.03 * scale + 0.005) << entry.key();
  }
}

TEST(MoeMlp, with_adapters_is_the_same_with_their_products_in_its_weights) {
  MoeMlp adapted(shared_moe(), 0, {}, kDouble), merged(shared_moe(), 0, {}, kDouble);
  initialise(merged, kSeed);
  initialise(adapted, kSeed);
  for (const char* name : {"gate", "experts.2.w1", "experts.3.w2", "shared_expert.up_proj"}) {
    auto layer = std::dynamic_pointer_cast<Linear>(adapted.named_modules("", false)[name]);
    const auto factor = [&](std::int64_t in, std::int64_t out) {
      auto linear = std::make_shared<Linear>(in, out, false, WeightLayout::kOutIn, Init{}, kDouble);
      linear->weight.set_data(parallel::random_tensor({out, in}, in + out, torch::kDouble));
      return linear;
    };
    const std::int64_t out = layer->weight.size(0), in = layer->weight.size(1);
    layer->lora = std::make_shared<LowRank>(LowRank{factor(in, 2), factor(2, out), 1.5});
    const torch::NoGradGuard no_grad;
    Tensor weight = merged.named_parameters()[std::string(name) + ".weight"];
    weight.add_(layer->lora->b->weight.mm(layer->lora->a->weight), 1.5);
  }
  const Tensor x = batch_of(2).x;
  EXPECT_LT(distance(adapted.forward(x, {}).y, merged.forward(x, {}).y), kTolerance);
}

TEST(MoeMlp, holds_its_experts_under_mixtrals_names) {
  parallel::run_ranks(4, [](comm::Communicator world) {
    const Partition partition = partition_of({.samples = {1, 1}, .tp = 2, .ep = 2}, world);
    const MoeMlp mlp(shared_moe(), 0, partition, kDouble);
    std::map<std::string, Placement> placements;
    for (const DeclaredParameter& parameter : declared_parameters(mlp))
      placements[parameter.name] = parameter.placement;
    EXPECT_EQ(placements.size(), 1u + 4 * 3 + 3);
    const Placement gate = placements.at("gate.weight");
    EXPECT_EQ(gate.whole, (std::vector<std::int64_t>{8, 6}));
    EXPECT_TRUE(gate.segments.empty() && gate.sharers == 2 && gate.partial_gradient && !gate.expert);
    const std::string last = partition.ep_rank() == 0 ? "experts.3." : "experts.7.";
    EXPECT_EQ(placements.at(last + "w1.weight").local_sizes(), (std::vector<std::int64_t>{5, 6}));
    EXPECT_EQ(placements.at(last + "w3.weight").local_sizes(), (std::vector<std::int64_t>{5, 6}));
    EXPECT_EQ(placements.at(last + "w2.weight").local_sizes(), (std::vector<std::int64_t>{6, 5}));
    EXPECT_TRUE(placements.at(last + "w2.weight").expert);
    EXPECT_EQ(placements.at("shared_expert.down_proj.weight").whole, (std::vector<std::int64_t>{6, 20}));
    EXPECT_FALSE(placements.at("shared_expert.down_proj.weight").expert);
    world.barrier().wait();
  });
}

TEST(MoeMlp, refuses_biases_and_more_choices_than_experts) {
  spec::Model biased = small_moe(), greedy = small_moe();
  biased.bias = true;
  greedy.experts_per_token = 9;
  EXPECT_THROW(MoeMlp(biased, 3, {}, kDouble), UserError);
  EXPECT_THROW(MoeMlp(greedy, 3, {}, kDouble), UserError);
}

TEST(ExpertCapacity, is_an_even_share_times_the_factor_rounded_up) {
  EXPECT_EQ(expert_capacity(1.0, 32, 2, 8), 8);
  EXPECT_EQ(expert_capacity(1.0, 33, 2, 8), 9);
  EXPECT_EQ(expert_capacity(1.1, 400, 2, 8), 110);  // 1.1 x 100 is a little more in floating point
  EXPECT_EQ(expert_capacity(0.01, 8, 2, 8), 1);
  EXPECT_EQ(expert_capacity(1.0, 0, 2, 8), 0);
}

TEST(DropOverCapacity, serves_first_choices_before_second_ones_and_earlier_tokens_before_later_ones) {
  // One sample on two context-parallel ranks; the second rank holds the earlier token.
  const std::int32_t late = 5, early = 2;
  std::vector<std::int32_t> first = {0, 1}, second = {0, 2};
  std::vector<RankChoices> ranks = {{1, 1, &late, first.data()}, {1, 1, &early, second.data()}};
  drop_over_capacity(ranks, 2, 2, 3, 1);
  EXPECT_EQ(second, (std::vector<std::int32_t>{0, 2}));
  EXPECT_EQ(first, (std::vector<std::int32_t>{kDropped, 1}));
  // Two data ranks: the second choice of the first waits for the first choice of the second.
  std::vector<std::int32_t> one = {0, 1}, two = {1, 2};
  ranks = {{1, 1, &late, one.data()}, {1, 1, &early, two.data()}};
  drop_over_capacity(ranks, 1, 2, 3, 1);
  EXPECT_EQ(one, (std::vector<std::int32_t>{0, kDropped}));
  EXPECT_EQ(two, (std::vector<std::int32_t>{1, 2}));
}

}  // namespace
}  // namespace lockstep::nn
