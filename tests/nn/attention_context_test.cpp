// Attention over a sequence that several ranks hold equals attention on one rank: values, gradients, and the bytes that
// travel. Ranks are threads.
#include "lockstep/nn/context_attention.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/nn/functional.h"
#include "tests/nn/attention_reference.h"
#include "tests/parallel/ranks.h"

namespace lockstep::nn {
namespace {

using plan::ContextExchange;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

struct Case {
  int ranks;
  ContextExchange exchange;
  bool balanced;
  AttentionShape shape;
  bool causal = true;
  double dropout = 0.0;
  std::vector<std::int64_t> lengths = {};

  AttentionOptions options() const {
    AttentionOptions options;
    options.causal = causal;
    options.dropout = dropout;
    options.site = {11, 5, 3, 2};
    options.first_head = 4;
    if (!lengths.empty()) options.lengths = torch::tensor(lengths, torch::kLong);
    return options;
  }

  std::vector<std::int64_t> out_sizes() const { return {shape.batch, shape.rows, shape.heads, shape.head_dim}; }
};

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  std::string name = c.exchange == ContextExchange::kRing ? (c.balanced ? "BalancedRing" : "Ring") : "AllToAll";
  name += std::to_string(c.ranks) + (c.causal ? "Causal" : "Full") + "Rows" + std::to_string(c.shape.rows) + "Heads" +
          std::to_string(c.shape.heads) + "Of" + std::to_string(c.shape.kv_heads);
  if (c.dropout > 0) name += "Dropout";
  if (!c.lengths.empty()) name += "Padded";
  return name;
}

Tensors rows_at(const Tensors& whole, const Tensor& positions) {
  Tensors part;
  for (const Tensor& t : whole) part.push_back(t.index_select(1, positions));
  return part;
}

Partition partition_of(const Case& c, const comm::Communicator& group) {
  Partition partition;
  partition.cp = group;
  partition.context_exchange = c.exchange;
  return partition;
}

// What one rank of the group computes: output and gradients of its rows.
Tensors run_rank(const Case& c, const comm::Communicator& group, torch::Dtype type = torch::kDouble) {
  const Partition partition = partition_of(c, group);
  AttentionOptions options = c.options();
  options.partition = &partition;
  options.balanced = c.balanced;
  const Tensor positions = context_positions(c.shape.rows, group.rank(), c.ranks, c.balanced);
  Tensors in = rows_at(draw_qkv(c.shape), positions);
  for (Tensor& t : in) t = t.to(type);
  const Tensor weights = draw(c.out_sizes(), "weights").index_select(1, positions).to(type);
  return values_and_gradients([&](const Tensors& t) { return self_attention(t[0], t[1], t[2], options); }, in, weights);
}

Tensors on_one_rank(const Case& c) {
  return values_and_gradients([&](const Tensors& t) { return self_attention(t[0], t[1], t[2], c.options()); },
                              draw_qkv(c.shape), draw(c.out_sizes(), "weights"));
}

constexpr auto kRing = ContextExchange::kRing;
constexpr auto kAllToAll = ContextExchange::kAllToAll;

class ContextAttention : public ::testing::TestWithParam<Case> {};
// Pieces of more than a kernel's 64 rows and of odd lengths; sequences that are not multiples of 4.
INSTANTIATE_TEST_SUITE_P(
    Ring, ContextAttention,
    ::testing::Values(Case{2, kRing, true, {300, 4, 2}}, Case{2, kRing, true, {300, 4, 2}, true, 0.1},
                      Case{2, kRing, false, {146, 4, 4}, true, 0.1}, Case{2, kRing, true, {60, 2, 1}, false, 0.1},
                      Case{3, kRing, true, {42, 6, 2}}, Case{3, kRing, true, {42, 6, 2}, true, 0.1},
                      Case{3, kRing, false, {39, 6, 2}, true, 0.1}, Case{3, kRing, false, {39, 3, 3}, false, 0.1},
                      Case{3, kRing, true, {42, 6, 6}, false, 0.1, {42, 13}}, Case{4, kRing, true, {72, 4, 2}},
                      Case{4, kRing, true, {72, 4, 2}, true, 0.1}, Case{4, kRing, false, {36, 4, 1}, true, 0.1},
                      Case{4, kRing, true, {72, 4, 2}, false, 0.1},
                      Case{4, kRing, true, {72, 4, 2}, true, 0.1, {1, 50}},
                      Case{4, kRing, false, {36, 4, 4}, false, 0.0, {9, 36}}),
    name_of);
INSTANTIATE_TEST_SUITE_P(AllToAll, ContextAttention,
                         ::testing::Values(Case{2, kAllToAll, false, {146, 4, 4}},
                                           Case{2, kAllToAll, false, {146, 4, 2}, true, 0.1},
                                           Case{2, kAllToAll, false, {70, 6, 2}, false, 0.1},
                                           Case{2, kAllToAll, false, {70, 6, 1}, true, 0.1},
                                           Case{3, kAllToAll, false, {39, 6, 3}, true, 0.1},
                                           Case{3, kAllToAll, false, {39, 6, 1}, false, 0.1},
                                           Case{4, kAllToAll, false, {36, 8, 4}, true, 0.1},
                                           Case{4, kAllToAll, false, {36, 8, 2}, true, 0.1},
                                           Case{4, kAllToAll, false, {36, 4, 1}, true, 0.1},
                                           Case{4, kAllToAll, false, {36, 8, 2}, false, 0.1, {36, 7}}),
                         name_of);

TEST_P(ContextAttention, equals_one_rank) {
  const Case c = GetParam();
  const Tensors whole = on_one_rank(c);
  parallel::run_ranks(c.ranks, [&](const comm::Communicator& group) {
    const Tensors expected = rows_at(whole, context_positions(c.shape.rows, group.rank(), c.ranks, c.balanced));
    EXPECT_LT(worst_difference(run_rank(c, group), expected), 1e-12) << "rank " << group.rank();
  });
}

TEST_P(ContextAttention, one_rank_is_the_textbook) {
  const Case c = GetParam();
  const Tensors textbook =
      values_and_gradients([&](const Tensors& t) { return textbook_attention(t[0], t[1], t[2], c.options()); },
                           draw_qkv(c.shape), draw(c.out_sizes(), "weights"));
  EXPECT_LT(worst_difference(on_one_rank(c), textbook), 1e-12);
}

TEST_P(ContextAttention, sends_as_many_bytes_as_the_formula_says) {
  const Case c = GetParam();
  const std::int64_t rows = c.shape.rows / c.ranks, steps = c.ranks - 1;
  const std::int64_t head_bytes = c.shape.batch * rows * c.shape.head_dim * 8;
  const std::int64_t shared_heads = std::max<std::int64_t>(c.shape.kv_heads, c.ranks);
  parallel::run_ranks(c.ranks, [&](comm::Communicator group) {
    group.reset_traffic();
    run_rank(c, group);
    const comm::Traffic traffic = group.traffic();
    if (c.exchange == kRing) {  // keys, keys again, gradients; k and v in one message
      for (const auto kind : {comm::OpKind::kSend, comm::OpKind::kRecv}) {
        EXPECT_EQ(traffic[kind].operations, 3 * steps);
        EXPECT_EQ(traffic[kind].bytes, 3 * steps * 2 * head_bytes * c.shape.kv_heads);
      }
      EXPECT_EQ(traffic[comm::OpKind::kAllToAll].operations, 0);
    } else {  // out and home, forward and backward
      EXPECT_EQ(traffic[comm::OpKind::kAllToAll].operations, 4);
      EXPECT_EQ(traffic[comm::OpKind::kAllToAll].bytes, 2 * head_bytes * (2 * c.shape.heads + 2 * shared_heads));
      EXPECT_EQ(traffic[comm::OpKind::kSend].operations, 0);
    }
  });
}

TEST(ContextAttentionInBf16, equals_one_rank_to_its_precision) {
  for (const Case& c :
       {Case{3, kRing, true, {42, 6, 2}, true, 0.1}, Case{2, kAllToAll, false, {70, 6, 2}, true, 0.1}}) {
    const Tensors whole = on_one_rank(c);
    parallel::run_ranks(c.ranks, [&](const comm::Communicator& group) {
      const Tensors expected = rows_at(whole, context_positions(c.shape.rows, group.rank(), c.ranks, c.balanced));
      EXPECT_LT(worst_difference(run_rank(c, group, torch::kBFloat16), expected), 0.03);
    });
  }
}

TEST(AllToAllAttention, refuses_heads_that_the_ranks_cannot_divide) {
  const Case c{2, kAllToAll, false, {4, 3, 3}};
  parallel::run_ranks(c.ranks, [&](const comm::Communicator& group) {
    try {
      run_rank(c, group);
      ADD_FAILURE() << "3 heads were divided by 2 ranks";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      EXPECT_NE(std::string(error.what()).find("3 query heads"), std::string::npos) << error.what();
    }
  });
}

TEST(RingAttention, tells_the_other_ranks_when_one_is_lost) {
  const Case c{3, kRing, true, {42, 6, 2}};
  parallel::run_ranks(c.ranks, [&](comm::Communicator group) {
    if (group.rank() == 2) return group.abort("test");
    EXPECT_THROW(run_rank(c, group), Fault);
  });
}

TEST(DropoutOfSomeRows, draws_the_masks_of_the_whole_sequence) {
  const Tensor x = draw({3, 12, 5}, "x").abs();  // rows that do not begin at multiples of 4 elements
  const DropoutSite site{1, 2, 3, 4};
  const Tensors whole = values_and_gradients([&](const Tensors& t) { return dropout(t[0], 0.4, site); }, {x}, x + 1);
  for (int rank = 0; rank < 3; ++rank) {
    const Tensor positions = context_positions(12, rank, 3, true);
    const Tensors part = values_and_gradients([&](const Tensors& t) { return dropout(t[0], 0.4, site, positions); },
                                              rows_at({x}, positions), rows_at({x + 1}, positions)[0]);
    EXPECT_EQ(worst_difference(part, rows_at(whole, positions)), 0.0);
  }
  EXPECT_EQ(worst_difference({dropout(x, 0.4, site, Tensor())}, {whole[0]}), 0.0);
}

}  // namespace
}  // namespace lockstep::nn
