// A call for every gradient that autograd finishes, while backward still runs.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <torch/types.h>

namespace lockstep::parallel {

class GradientHooks {
 public:
  // `call(i)` each time a backward pass has finished the gradient of tensors[i]: once per pass, with all its uses
  // summed, in the thread that runs backward. Destruction ends the calls.
  GradientHooks(const std::vector<torch::Tensor>& tensors, std::function<void(std::size_t)> call);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

 private:
  struct Nodes;
  std::unique_ptr<Nodes> nodes_;
};

}  // namespace lockstep::parallel
