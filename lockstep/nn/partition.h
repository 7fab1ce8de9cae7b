// Partition: the ranks that compute one model together, as its layers see them. A layer asks for its share and
// exchanges activations through the groups; an empty Partition is the whole model on one rank.
#pragma once

#include <cstdint>

#include <torch/types.h>

#include "lockstep/comm/communicator.h"
#include "lockstep/nn/placement.h"
#include "lockstep/plan/layout.h"
#include "lockstep/spec/model.h"

namespace lockstep::nn {

// Copies share the groups. A group that is not valid() has one rank and is never used.
struct Partition {
  comm::Communicator tp;       // ranks that split heads, MLP width and vocabulary
  comm::Communicator cp;       // ranks that split the sequence
  comm::Communicator ep;       // ranks that split the experts
  comm::Communicator routing;  // everyone whose tokens belong to the same micro-step: dp x shard x cp, in this order
  bool sequence_parallel = false;
  plan::ContextExchange context_exchange = plan::ContextExchange::kRing;

  static std::int64_t size(const comm::Communicator& group) { return group.valid() ? group.size() : 1; }
  static std::int64_t rank(const comm::Communicator& group) { return group.valid() ? group.rank() : 0; }
  std::int64_t tp_size() const { return size(tp); }
  std::int64_t tp_rank() const { return rank(tp); }
  std::int64_t cp_size() const { return size(cp); }
  std::int64_t cp_rank() const { return rank(cp); }
  std::int64_t ep_size() const { return size(ep); }
  std::int64_t ep_rank() const { return rank(ep); }

  // This rank's share of `total` things that tp splits.
  Segment tp_share(std::int64_t total) const { return share_of(total, tp_rank(), tp_size()); }
};

// Grouped-query attention on tp ranks: key/value heads are split as far as they go, then shared by neighbours.
struct HeadShare {
  Segment query;
  Segment key;
  std::int64_t key_sharers = 1;
};
HeadShare head_share(const spec::Model& model, const Partition& partition);

// Global positions (int64 [seq / cp], CPU) of the rows that rank `rank` of `ranks` context-parallel ranks holds.
// Ring attention balances causal work by giving each rank one piece from the front and one from the back (Korthikanti
// et al.; Liu et al. 2023): pieces r and 2 cp - 1 - r of 2 cp. State-space models and all-to-all take one piece in
// order.
torch::Tensor context_positions(std::int64_t seq, std::int64_t rank, std::int64_t ranks, bool balanced);
bool balances_context(const spec::Model& model, const Partition& partition);

}  // namespace lockstep::nn
