#include "lockstep/nn/moe_rows.h"

#include <numeric>

#include "lockstep/nn/attention_block.h"
#include "lockstep/nn/autograd.h"
#include "lockstep/nn/collectives.h"
#include "lockstep/nn/moe_capacity.h"
#include "lockstep/nn/placement.h"
#include "lockstep/nn/tensor_comm.h"

namespace lockstep::nn {
namespace {

Tensor to_device(const std::vector<std::int64_t>& values, torch::Device device) {
  return torch::tensor(values, torch::kLong).to(device);
}

std::int64_t sum(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

// The row of each token's choice number `choice`, in fp32 or better; zeros where it was dropped.
Tensor rows_of_choice(const Tensor& rows, const Tensor& row_of_pair, std::int64_t choice, bool complete) {
  const Tensor index = row_of_pair.select(1, choice);
  if (complete) return rows.index_select(0, index).to(wide_type(rows));
  if (rows.size(0) == 0) return torch::zeros({index.size(0), rows.size(1)}, rows.options().dtype(wide_type(rows)));
  Tensor taken = rows.index_select(0, index.clamp_min(0)).to(wide_type(rows));
  return taken.masked_fill_(index.lt(0).unsqueeze(1), 0);
}

// `weights` may be undefined: all ones.
Tensor sum_of_choices(const Tensor& rows, const Tensor& weights, const Tensor& row_of_pair, bool complete) {
  Tensor total;
  for (std::int64_t choice = 0; choice < row_of_pair.size(1); ++choice) {
    Tensor part = rows_of_choice(rows, row_of_pair, choice, complete);
    if (weights.defined()) part.mul_(weights.narrow(1, choice, 1));
    total = total.defined() ? total.add_(part) : part;
  }
  return total.to(rows.scalar_type());
}

class RowsOfTokens : public torch::autograd::Function<RowsOfTokens> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& pairs, const Tensor& row_of_pair,
                        bool complete) {
    ctx->save_for_backward({row_of_pair});
    ctx->saved_data["complete"] = complete;
    const std::int64_t choices = row_of_pair.size(1);
    return x.index_select(0, choices == 1 ? pairs : pairs.div(choices, "floor"));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const bool complete = ctx->saved_data["complete"].toBool();
    return {sum_of_choices(grads[0], Tensor(), saved[0], complete), Tensor(), Tensor(), Tensor()};
  }
};

class WeightedSum : public torch::autograd::Function<WeightedSum> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& rows, const Tensor& weights, const Tensor& pairs,
                        const Tensor& row_of_pair, bool complete) {
    ctx->save_for_backward({rows, weights, pairs});
    return sum_of_choices(rows, weights, row_of_pair, complete);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &rows = saved[0], &weights = saved[1], &pairs = saved[2];
    const Tensor tokens = pairs.div(weights.size(1), "floor");
    Tensor dy = grads[0].index_select(0, tokens).to(weights.scalar_type());  // [rows, features]
    Tensor dweights = torch::zeros({weights.numel()}, weights.options());
    dweights.index_copy_(0, pairs, (rows.to(weights.scalar_type()) * dy).sum(1));
    const Tensor weight_of_row = weights.reshape({-1}).index_select(0, pairs);
    const Tensor drows = dy.mul_(weight_of_row.unsqueeze(1)).to(rows.scalar_type());
    return {drows, dweights.view(weights.sizes()), Tensor(), Tensor(), Tensor()};
  }
};

// Where element i of a permutation goes.
std::vector<std::int64_t> inverse_of(const std::vector<std::int64_t>& permutation) {
  std::vector<std::int64_t> inverse(permutation.size());
  for (std::size_t i = 0; i < permutation.size(); ++i) {
    inverse[static_cast<std::size_t>(permutation[i])] = static_cast<std::int64_t>(i);
  }
  return inverse;
}

}  // namespace

RowOrder order_by_expert(const std::vector<std::int32_t>& experts, std::int64_t choices, std::int64_t expert_count,
                         torch::Device device) {
  RowOrder order;
  order.per_expert.assign(static_cast<std::size_t>(expert_count), 0);
  for (const std::int32_t expert : experts) {
    if (expert != kDropped) ++order.per_expert[static_cast<std::size_t>(expert)];
  }
  std::vector<std::int64_t> next(order.per_expert.size(), 0);
  std::exclusive_scan(order.per_expert.begin(), order.per_expert.end(), next.begin(), std::int64_t{0});
  std::vector<std::int64_t> pairs(static_cast<std::size_t>(sum(order.per_expert)));
  std::vector<std::int64_t> rows(experts.size(), -1);
  for (std::size_t pair = 0; pair < experts.size(); ++pair) {
    if (experts[pair] == kDropped) continue;
    rows[pair] = next[static_cast<std::size_t>(experts[pair])]++;
    pairs[static_cast<std::size_t>(rows[pair])] = static_cast<std::int64_t>(pair);
  }
  order.complete = pairs.size() == rows.size();
  order.pairs = to_device(pairs, device);
  order.rows = to_device(rows, device).view({-1, choices});
  return order;
}

Tensor rows_of_tokens(const Tensor& x, const RowOrder& order) {
  return RowsOfTokens::apply(x, order.pairs, order.rows, order.complete);
}

Tensor weighted_sum(const Tensor& rows, const Tensor& weights, const RowOrder& order) {
  return WeightedSum::apply(rows, weights, order.pairs, order.rows, order.complete);
}

ExpertExchange::ExpertExchange(const std::vector<std::int64_t>& per_expert, const comm::Communicator& ep,
                               torch::Device device)
    : ep_(ep), per_own_expert_(per_expert) {
  if (!ep_.valid() || ep_.size() == 1) return;
  const auto experts = static_cast<std::int64_t>(per_expert.size());
  const std::int64_t own = share_of(experts, ep_.rank(), ep_.size()).count;
  std::vector<std::int64_t> sent(static_cast<std::size_t>(ep_.size()));  // counts, then rows, by rank
  for (int rank = 0; rank < ep_.size(); ++rank) {
    const Segment share = share_of(experts, rank, ep_.size());
    sent[static_cast<std::size_t>(rank)] = share.count;
    const auto first = per_expert.begin() + share.first;
    send_.push_back(std::accumulate(first, first + share.count, std::int64_t{0}));
  }
  const Tensor counts = to_device(per_expert, device);
  const Tensor arriving = torch::empty({ep_.size(), own}, counts.options());
  comm::OpOptions options;
  options.site = "ep: counts";
  const std::vector<std::int64_t> received(sent.size(), own);
  ep_.all_to_all(buffer_of(counts), sent, buffer_of(arriving), received, options).wait();

  const Tensor on_host = arriving.to(torch::kCPU);
  std::vector<std::vector<std::int64_t>> by_rank;
  for (int rank = 0; rank < ep_.size(); ++rank) {
    const std::int64_t* row = on_host.data_ptr<std::int64_t>() + rank * own;
    by_rank.emplace_back(row, row + own);
    receive_.push_back(sum(by_rank.back()));
  }
  make_orders(by_rank, device);
}

void ExpertExchange::make_orders(const std::vector<std::vector<std::int64_t>>& arriving, torch::Device device) {
  per_own_expert_.assign(arriving.front().size(), 0);
  // first[rank][expert]: where the block of rank and expert begins on arrival.
  std::vector<std::vector<std::int64_t>> first = arriving;
  std::int64_t at = 0;
  for (std::size_t rank = 0; rank < arriving.size(); ++rank) {
    for (std::size_t expert = 0; expert < per_own_expert_.size(); ++expert) {
      first[rank][expert] = at;
      at += arriving[rank][expert];
      per_own_expert_[expert] += arriving[rank][expert];
    }
  }
  std::vector<std::int64_t> by_expert;
  for (std::size_t expert = 0; expert < per_own_expert_.size(); ++expert) {
    for (std::size_t rank = 0; rank < arriving.size(); ++rank) {
      for (std::int64_t i = 0; i < arriving[rank][expert]; ++i) by_expert.push_back(first[rank][expert] + i);
    }
  }
  const Tensor forth = to_device(by_expert, device), back = to_device(inverse_of(by_expert), device);
  by_expert_ = {forth, back.unsqueeze(1), true, {}};
  by_arrival_ = {back, forth.unsqueeze(1), true, {}};
}

Tensor ExpertExchange::dispatch(const Tensor& rows) const {
  const Tensor arrived = exchange_rows(rows, send_, receive_, ep_, "ep: dispatch");
  return send_.empty() || per_own_expert_.size() == 1 ? arrived : rows_of_tokens(arrived, by_expert_);
}

Tensor ExpertExchange::combine(const Tensor& rows) const {
  const bool in_order = send_.empty() || per_own_expert_.size() == 1;
  const Tensor by_rank = in_order ? rows : rows_of_tokens(rows, by_arrival_);
  return exchange_rows(by_rank, receive_, send_, ep_, "ep: combine");
}

std::int64_t ExpertExchange::rows_sent() const { return sum(send_); }
std::int64_t ExpertExchange::rows_received() const { return sum(receive_); }

}  // namespace lockstep::nn
