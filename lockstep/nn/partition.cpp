#include "lockstep/nn/partition.h"

#include "lockstep/base/error.h"

namespace lockstep::nn {

HeadShare head_share(const spec::Model& model, const Partition& partition) {
  const std::int64_t tp = partition.tp_size(), rank = partition.tp_rank();
  const std::int64_t kv_heads = model.kv_heads > 0 ? model.kv_heads : model.heads;
  HeadShare share;
  share.query = share_of(model.heads, rank, tp);
  share.key_sharers = tp > kv_heads ? tp / kv_heads : 1;
  share.key = share_of(kv_heads, rank / share.key_sharers, tp / share.key_sharers);
  return share;
}

torch::Tensor context_positions(std::int64_t seq, std::int64_t rank, std::int64_t ranks, bool balanced) {
  const auto integers = torch::dtype(torch::kLong);
  const auto piece = [&](std::int64_t index, std::int64_t pieces) {
    const std::int64_t rows = seq / pieces;
    return torch::arange(index * rows, (index + 1) * rows, integers);
  };
  LOCKSTEP_ASSERT(seq % (balanced ? 2 * ranks : ranks) == 0, "cp divides the sequence");
  if (!balanced) return piece(rank, ranks);
  return at::cat({piece(rank, 2 * ranks), piece(2 * ranks - 1 - rank, 2 * ranks)});
}

bool balances_context(const spec::Model& model, const Partition& partition) {
  return model.arch != spec::Arch::kMamba && partition.context_exchange == plan::ContextExchange::kRing;
}

}  // namespace lockstep::nn
