#include "lockstep/parallel/gradient_hooks.h"

#include <torch/autograd.h>

#include <utility>

namespace lockstep::parallel {
namespace {

class PostHook : public torch::autograd::FunctionPostHook {
 public:
  explicit PostHook(std::function<void()> call) : call_(std::move(call)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    call_();
    return outputs;
  }

 private:
  std::function<void()> call_;
};

}  // namespace

// Autograd keeps only weak references to its accumulation nodes; holding them here keeps the hooks alive.
struct GradientHooks::Nodes {
  // std::shared_ptr or c10::intrusive_ptr, depending on libtorch's version.
  using Pointer = decltype(torch::autograd::impl::grad_accumulator(std::declval<const torch::Tensor&>()));
  std::vector<std::pair<Pointer, std::uintptr_t>> held;  // with the key of the hook
};

GradientHooks::GradientHooks(const std::vector<torch::Tensor>& tensors, std::function<void(std::size_t)> call)
    : nodes_(std::make_unique<Nodes>()) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto node = torch::autograd::impl::grad_accumulator(tensors[i]);
    const auto key = node->add_post_hook(std::make_unique<PostHook>([call, i] { call(i); }));
    nodes_->held.emplace_back(std::move(node), key);
  }
}

GradientHooks::~GradientHooks() {
  for (auto& [node, key] : nodes_->held) node->del_post_hook(key);
}

}  // namespace lockstep::parallel
