// Backward in two halves, for zero-bubble pipelines (Qi et al. 2023): while a DeferWeightGradients is alive in a
// thread, the products of nn/functional.h give gradients of their inputs only and leave those of their weights in the
// queue, to be computed when the pipeline has nothing better to do.
#pragma once

#include <functional>
#include <vector>

#include <torch/types.h>

#include "lockstep/nn/functional.h"

namespace lockstep::nn {

class WeightGradientQueue {
 public:
  // `compute` returns the gradient of leaf `weight`; what it needs stays alive until run().
  void push(torch::Tensor weight, std::function<torch::Tensor()> compute);
  // Computes everything in order and adds it to the weights' grad().
  void run();
  bool empty() const { return entries_.empty(); }

 private:
  struct Entry {
    torch::Tensor weight;
    std::function<torch::Tensor()> compute;
  };
  std::vector<Entry> entries_;
};

// For the lifetime of this object, in this thread. Nests: the innermost counts; null switches deferring off.
class DeferWeightGradients {
 public:
  explicit DeferWeightGradients(WeightGradientQueue* queue);
  ~DeferWeightGradients();
  DeferWeightGradients(const DeferWeightGradients&) = delete;
  DeferWeightGradients& operator=(const DeferWeightGradients&) = delete;

 private:
  WeightGradientQueue* previous_;
};

// For backward functions: compute() now, or an undefined tensor after queueing it. Weights that are not leaves are
// never deferred.
torch::Tensor gradient_now_or_later(const torch::Tensor& weight, std::function<torch::Tensor()> compute);

// Gradient of a weight from x [rows, in] and dy [rows, out], in the weight's own layout, now or later.
torch::Tensor weight_gradient(const torch::Tensor& weight, const torch::Tensor& x, const torch::Tensor& dy,
                              WeightLayout layout);

}  // namespace lockstep::nn
