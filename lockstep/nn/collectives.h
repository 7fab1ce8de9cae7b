// Differentiable collectives on activations. Every function blocks until the exchange is done (at most the group's
// timeout; throws Fault) and, like every collective, must be called by all ranks of the group in the same order. An
// invalid group, or one of a single rank, returns x itself. `site` names the call in messages and flight records.
//
// Rows are dim 1: x is [batch, rows, features].
#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "lockstep/comm/communicator.h"

namespace lockstep::nn {

// Entry of a tensor-parallel region: x forward, sum of the ranks' gradients backward (Shoeybi et al. 2019, f).
torch::Tensor enter_tensor_region(const torch::Tensor& x, const comm::Communicator& group, const char* site);
// Exit: sum of the ranks' partial results forward, the gradient itself backward (g).
torch::Tensor leave_tensor_region(const torch::Tensor& x, const comm::Communicator& group, const char* site);
// Sum both ways: partial results that every rank continues with inside the region.
torch::Tensor sum_inside_region(const torch::Tensor& x, const comm::Communicator& group, const char* site);

// Sequence parallel (Korthikanti et al. 2022): rows of all ranks together forward, sum of the gradients scattered back.
torch::Tensor gather_rows(const torch::Tensor& x, const comm::Communicator& group, const char* site);
// Sum of the partial results, each rank keeping its rows, forward; rows gathered backward.
torch::Tensor scatter_rows(const torch::Tensor& x, const comm::Communicator& group, const char* site);

// Rows of all ranks together for what every rank then computes identically: backward keeps the rank's own rows of a
// gradient that is already whole.
torch::Tensor collect_rows(const torch::Tensor& x, const comm::Communicator& group, const char* site);

// x [rows, ...]: `send[i]` rows go to rank i, `receive[i]` come from it, in rank order; backward the other way round.
torch::Tensor exchange_rows(const torch::Tensor& x, const std::vector<std::int64_t>& send,
                            const std::vector<std::int64_t>& receive, const comm::Communicator& group,
                            const char* site);

// A value handed from rank r to r + 1 of the group (and its gradient back). receive_from_previous returns zeros on the
// first rank; `anchor` is any tensor that needs a gradient, so that backward runs here. send_to_next returns `carrier`
// unchanged, which must be used in what follows, so that backward receives the gradient of x before it needs it; on
// the last rank it does nothing.
torch::Tensor receive_from_previous(torch::IntArrayRef sizes, const torch::Tensor& anchor,
                                    const comm::Communicator& group, const char* site);
torch::Tensor send_to_next(const torch::Tensor& x, const torch::Tensor& carrier, const comm::Communicator& group,
                           const char* site);

}  // namespace lockstep::nn
