// Rows of tokens on their way to the experts and back: sorting by expert, the exchange between expert-parallel ranks,
// and the weighted sum. Everything is a gather by indices that are known both ways, so neither values nor gradients
// depend on the order in which threads or ranks work.
#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "lockstep/comm/communicator.h"

namespace lockstep::nn {

// The accepted (token, choice) pairs sorted by (expert, token): pair = token x choices + choice stands in one row.
struct RowOrder {
  torch::Tensor pairs;                   // int64 [rows]: the pair in each row
  torch::Tensor rows;                    // int64 [tokens, choices]: the row of each pair; -1: dropped
  bool complete = true;                  // nothing is dropped
  std::vector<std::int64_t> per_expert;  // rows of each expert
};

// `experts` [tokens, choices], kDropped (moe_capacity.h) where a pair has no row. The tensors come to `device`.
RowOrder order_by_expert(const std::vector<std::int32_t>& experts, std::int64_t choices, std::int64_t expert_count,
                         torch::Device device);

// The token of each row: x [tokens, features] -> [rows, features]. Backward sums a token's rows in order of choice.
torch::Tensor rows_of_tokens(const torch::Tensor& x, const RowOrder& order);

// y_t = sum over choices c of weights[t, c] x the pair's row, in order of c; dropped pairs give nothing. rows [rows,
// features], weights [tokens, choices] in fp32 or better; the result has the dtype of rows.
torch::Tensor weighted_sum(const torch::Tensor& rows, const torch::Tensor& weights, const RowOrder& order);

// Brings rows to the rank that holds their expert. Rank e of ep holds experts share_of(experts, e, ep). An invalid
// group, or one of a single rank, exchanges nothing.
class ExpertExchange {
 public:
  // `per_expert`: rows that this rank has for each of all experts. Exchanges these counts ("ep: counts"); blocks.
  // `device` is where the group's buffers live.
  ExpertExchange(const std::vector<std::int64_t>& per_expert, const comm::Communicator& ep, torch::Device device);

  // Rows sorted by expert -> rows for this rank's experts, sorted by (expert, rank they come from). "ep: dispatch".
  torch::Tensor dispatch(const torch::Tensor& rows) const;
  // The way back. "ep: combine".
  torch::Tensor combine(const torch::Tensor& rows) const;

  const std::vector<std::int64_t>& per_own_expert() const { return per_own_expert_; }
  // Rows that dispatch() hands to the exchange and gets from it, those that stay on this rank included; 0 without one.
  std::int64_t rows_sent() const;
  std::int64_t rows_received() const;

 private:
  // Between order of arrival (rank, expert) and order of experts (expert, rank).
  void make_orders(const std::vector<std::vector<std::int64_t>>& arriving, torch::Device device);

  comm::Communicator ep_;
  std::vector<std::int64_t> send_, receive_;  // rows by rank; empty without an exchange
  std::vector<std::int64_t> per_own_expert_;
  RowOrder by_expert_, by_arrival_;  // permutations, inverse to each other; unused with one own expert
};

}  // namespace lockstep::nn
