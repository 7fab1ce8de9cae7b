#include "lockstep/engine/peer_state.h"

#include <gtest/gtest.h>

#include "tests/parallel/ranks.h"

namespace lockstep::engine {
namespace {

using checkpoint::CheckpointPart;
using checkpoint::TensorKind;

// Elements [first, end) of the tensor "w" of ten numbers, after `step` steps: element i is 100 x step + i.
checkpoint::TensorPiece piece(std::int64_t step, std::int64_t first, std::int64_t end) {
  checkpoint::TensorPiece made;
  made.name = "w";
  made.sizes = {10};
  checkpoint::append_run(made.series, first, end - first);
  made.values = torch::arange(100 * step + first, 100 * step + end, torch::kFloat32);
  return made;
}

CheckpointPart part(std::int64_t step, std::vector<checkpoint::TensorPiece> pieces) {
  CheckpointPart made;
  made.facts.step = step;
  made.facts.loader = {{"samples", 8 * step}};
  made.pieces = std::move(pieces);
  return made;
}

// What each of the ranks reads of [first, end) when they hold what `held` says.
void expect_step(const std::vector<std::vector<CheckpointPart>>& held, std::optional<std::int64_t> step) {
  parallel::run_ranks(static_cast<int>(held.size()), [&](comm::Communicator world) {
    PeerState peers(world, held[static_cast<std::size_t>(world.rank())]);
    ASSERT_EQ(peers.step(), step);
    if (!step) return;
    EXPECT_EQ(peers.facts().loader.at("samples"), 8 * *step);
    const std::int64_t first = world.rank(), count = 10 - 2 * world.rank();
    peers.fetch({{TensorKind::kModel, "w", first, count}});
    torch::Tensor out = torch::zeros({count}, torch::kFloat64);
    peers.read(TensorKind::kModel, "w", first, out);
    const auto wanted = torch::arange(100 * *step + first, 100 * *step + first + count, torch::kFloat64);
    EXPECT_TRUE(torch::equal(out, wanted)) << out;
  });
}

TEST(PeerState, brings_what_a_rank_needs_from_those_that_hold_it) {
  expect_step({{part(5, {piece(5, 0, 4)})}, {part(5, {piece(5, 4, 10)})}, {}}, 5);
}

TEST(PeerState, takes_what_several_hold_once) {
  expect_step({{part(5, {piece(5, 0, 10)})}, {part(5, {piece(5, 0, 10)})}, {part(5, {piece(5, 3, 6)})}}, 5);
}

TEST(PeerState, falls_back_to_the_newest_step_that_is_complete) {
  expect_step({{part(6, {piece(6, 0, 5)}), part(5, {piece(5, 0, 5)})}, {part(5, {piece(5, 5, 10)})}}, 5);
}

TEST(PeerState, takes_snapshots_of_a_step_that_live_states_have_left) {
  // Rank 1 is lost. Rank 0 is a step ahead and has a copy of its own of step 5; rank 2 is at 5 and keeps rank 1's
  // copies.
  expect_step({{part(6, {piece(6, 0, 4)}), part(5, {piece(5, 0, 4)}), part(4, {piece(4, 0, 4)})},
               {},
               {part(5, {piece(5, 7, 10)}), part(4, {piece(4, 4, 7)}), part(5, {piece(5, 4, 7)})}},
              5);
}

TEST(PeerState, goes_back_further_when_the_newest_copy_did_not_arrive) {
  expect_step({{part(5, {piece(5, 0, 4)}), part(4, {piece(4, 0, 4)})},
               {},
               {part(5, {piece(5, 7, 10)}), part(4, {piece(4, 7, 10)}), part(4, {piece(4, 4, 7)})}},
              4);
}

checkpoint::TensorPiece feedback(double value) {
  return checkpoint::whole_piece(TensorKind::kRank, "error", torch::full({3}, value));
}

CheckpointPart of_rank(int rank, CheckpointPart given) {
  given.facts.rank_state["rank"] = rank;
  given.facts.extra["world"] = 2;
  return given;
}

TEST(PeerState, brings_a_rank_what_was_its_own) {
  const std::vector<CheckpointPart> survivor = {of_rank(0, part(5, {piece(5, 0, 10), feedback(0.5)})),
                                                of_rank(1, part(5, {feedback(1.5)}))};
  parallel::run_ranks(2, [&](comm::Communicator world) {
    const std::vector<CheckpointPart> held = world.rank() == 0 ? survivor : std::vector<CheckpointPart>{};
    PeerState peers(world, held);
    EXPECT_EQ(peers.step(), 5);
    EXPECT_TRUE(peers.has_rank_state());
    peers.fetch({});
    EXPECT_TRUE(torch::equal(peers.rank_tensors().at("error"), torch::full({3}, 0.5 + world.rank())));
  });
}

TEST(PeerState, prefers_an_older_step_with_all_that_was_the_ranks_own) {
  const std::vector<CheckpointPart> survivor = {of_rank(0, part(6, {piece(6, 0, 10), feedback(0.6)})),
                                                of_rank(0, part(5, {piece(5, 0, 10), feedback(0.5)})),
                                                of_rank(1, part(5, {feedback(1.5)}))};
  parallel::run_ranks(2, [&](comm::Communicator world) {
    const std::vector<CheckpointPart> held = world.rank() == 0 ? survivor : std::vector<CheckpointPart>{};
    EXPECT_EQ(PeerState(world, held).step(), 5);
  });
}

TEST(PeerState, starts_error_feedback_anew_when_that_of_a_rank_is_gone) {
  const std::vector<CheckpointPart> survivor = {of_rank(0, part(5, {piece(5, 0, 10), feedback(0.5)}))};
  parallel::run_ranks(2, [&](comm::Communicator world) {
    const std::vector<CheckpointPart> held = world.rank() == 0 ? survivor : std::vector<CheckpointPart>{};
    const PeerState peers(world, held);
    EXPECT_EQ(peers.step(), 5);
    EXPECT_FALSE(peers.has_rank_state());
    EXPECT_EQ(peers.facts().extra.at("world"), 0);
  });
}

TEST(PeerState, has_no_step_when_a_piece_died_with_its_rank) {
  expect_step({{part(6, {piece(6, 0, 5)})}, {part(6, {piece(6, 6, 10)})}}, std::nullopt);
}

TEST(PeerState, has_no_step_when_a_whole_tensor_died_with_its_rank) {
  const std::vector<CheckpointPart> survivor = {part(6, {piece(6, 0, 10)})};
  parallel::run_ranks(2, [&](comm::Communicator world) {
    const std::vector<CheckpointPart> held = world.rank() == 0 ? survivor : std::vector<CheckpointPart>{};
    const std::string mine = world.rank() == 0 ? "w" : "of the lost stage";
    EXPECT_EQ(PeerState(world, held, {{TensorKind::kModel, mine}}).step(), std::nullopt);
    EXPECT_EQ(PeerState(world, held, {{TensorKind::kModel, "w"}}).step(), 6);
  });
}

TEST(PeerState, has_no_step_when_nobody_holds_anything) { expect_step({{}, {}}, std::nullopt); }

TEST(PeerState, joins_the_columns_of_a_split_matrix) {
  const torch::Tensor whole = torch::arange(24, torch::kFloat32).view({4, 6});
  parallel::run_ranks(3, [&](comm::Communicator world) {
    std::vector<CheckpointPart> held;
    if (world.rank() < 2) {
      checkpoint::TensorPiece columns;
      columns.name = "m";
      columns.sizes = {4, 6};
      for (std::int64_t row = 0; row < 4; ++row) {
        checkpoint::append_run(columns.series, row * 6 + 3 * world.rank(), 3);
      }
      columns.values = whole.slice(1, 3 * world.rank(), 3 * world.rank() + 3).contiguous().view({-1});
      held.push_back(part(1, {columns}));
    }
    PeerState peers(world, held);
    ASSERT_TRUE(peers.step());
    peers.fetch({{TensorKind::kModel, "m", 0, 24}});
    torch::Tensor out = torch::zeros({24});
    peers.read(TensorKind::kModel, "m", 0, out);
    EXPECT_TRUE(torch::equal(out.view({4, 6}), whole));
  });
}

TEST(RecordingSource, knows_what_was_read) {
  parallel::run_ranks(1, [&](comm::Communicator world) {
    const std::vector<CheckpointPart> held = {part(5, {piece(5, 0, 10)})};
    const PeerState peers(world, held);
    const RecordingSource wanted(peers);
    torch::Tensor out = torch::zeros({4});
    wanted.read(TensorKind::kModel, "w", 2, out);
    EXPECT_EQ(wanted.ranges(), (std::vector<TensorRange>{{TensorKind::kModel, "w", 2, 4}}));
    EXPECT_TRUE(torch::equal(out, torch::ones({4})));
  });
}

}  // namespace
}  // namespace lockstep::engine
