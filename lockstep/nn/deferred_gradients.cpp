#include "lockstep/nn/deferred_gradients.h"

#include <utility>

namespace lockstep::nn {
namespace {

// A property of the running backward pass, like libtorch's own gradient mode, and so kept where that is: in the thread.
thread_local WeightGradientQueue* active_queue = nullptr;

}  // namespace

void WeightGradientQueue::push(torch::Tensor weight, std::function<torch::Tensor()> compute) {
  entries_.push_back({std::move(weight), std::move(compute)});
}

void WeightGradientQueue::run() {
  const torch::NoGradGuard no_grad;
  for (Entry& entry : std::exchange(entries_, {})) {
    torch::Tensor& sum = entry.weight.mutable_grad();
    if (sum.defined()) {
      sum.add_(entry.compute());
    } else {
      sum = entry.compute();
    }
  }
}

DeferWeightGradients::DeferWeightGradients(WeightGradientQueue* queue)
    : previous_(std::exchange(active_queue, queue)) {}

DeferWeightGradients::~DeferWeightGradients() { active_queue = previous_; }

torch::Tensor gradient_now_or_later(const torch::Tensor& weight, std::function<torch::Tensor()> compute) {
  if (!weight.requires_grad()) return {};
  if (active_queue == nullptr || !weight.is_leaf()) return compute();
  active_queue->push(weight, std::move(compute));
  return {};
}

torch::Tensor weight_gradient(const torch::Tensor& weight, const torch::Tensor& x, const torch::Tensor& dy,
                              WeightLayout layout) {
  return gradient_now_or_later(
      weight, [x, dy, layout] { return layout == WeightLayout::kInOut ? x.t().mm(dy) : dy.t().mm(x); });
}

}  // namespace lockstep::nn
