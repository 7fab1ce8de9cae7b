// Placement: which part of a model's whole tensor a rank holds. Everything that must know the whole model (initial
// values, weights from files, checkpoints, export) goes through it, so that any layout reads and writes the same model.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <torch/types.h>

namespace lockstep::nn {

// [first, first + count) along one dim.
struct Segment {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

struct Placement {
  std::vector<std::int64_t> whole;  // sizes of the whole tensor
  std::int64_t dim = 0;             // the dim that is cut
  std::vector<Segment> segments;    // parts of that dim, in local order; empty: nothing is cut
  // Consecutive ranks of the tensor-parallel group that hold this very part (1: this rank alone).
  std::int64_t sharers = 1;
  // Each sharer computes a part of the gradient, and their sum is the gradient. Otherwise every sharer has all of it.
  bool partial_gradient = false;
  // Weights of routed experts: replicated and sharded over the ranks with the same experts, fewer than for the others.
  bool expert = false;

  std::vector<std::int64_t> local_sizes() const;
  std::int64_t local_count() const;
  std::int64_t whole_count() const;
};

// A stretch of elements (row-major) that is contiguous both in the local and in the whole tensor.
struct Run {
  std::int64_t local = 0;
  std::int64_t whole = 0;
  std::int64_t count = 0;
};

// The runs of local elements [first, first + count), in order.
std::vector<Run> runs_of(const Placement& placement, std::int64_t first, std::int64_t count);

// Rank `rank`'s share of `total` things: as even as possible, in order.
Segment share_of(std::int64_t total, std::int64_t rank, std::int64_t ranks);

// Writes elements [first, first + out.numel()) of a whole tensor's initial value into `out` (1-D, contiguous, any
// device and floating dtype). `name` is the parameter's full name. Depends on (seed, name, first) alone.
using InitialValue =
    std::function<void(torch::Tensor& out, std::int64_t first, std::uint64_t seed, const std::string& name)>;
InitialValue constant_value(double value);
InitialValue normal_value(double mean, double std);
InitialValue uniform_value(double low, double high);

}  // namespace lockstep::nn
