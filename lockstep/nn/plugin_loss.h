// PluginLoss: a loss that a plugin registered, for a plugin's model or a module from Python.
#pragma once

#include <memory>
#include <string>

#include "lockstep/nn/model.h"
#include "lockstep/plugin/library.h"

namespace lockstep::nn {

// What a plugin's code returned, as a loss of ours. Throws UserError where sum or count are not what they should be;
// `doing` says what was called ("its loss").
LossResult checked_loss(const plugin::Loss& loss, plugin::Counted counted, const torch::Tensor& target,
                        const std::string& title, const std::string& doing);

class PluginLoss {
 public:
  explicit PluginLoss(const spec::PluginUse& use);
  bool counts_targets() const { return counted_ == plugin::Counted::kTargets; }
  LossResult compute(const torch::Tensor& output, const torch::Tensor& target, bool training) const;

 private:
  std::string title_;
  std::unique_ptr<plugin::LossFunction> function_;
  plugin::Counted counted_;
};

}  // namespace lockstep::nn
