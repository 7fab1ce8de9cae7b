#include "lockstep/engine/whole_tensors.h"

#include "lockstep/base/error.h"

namespace lockstep::engine {

parallel::ParallelModel::ReadRange range_reader(const parallel::TensorMap& whole, const std::string& prefix) {
  return [&whole, prefix](const std::string& name, std::int64_t first, torch::Tensor out) {
    const auto found = whole.find(prefix + name);
    if (found == whole.end() || first + out.numel() > found->second.numel()) {
      throw bad_input("the checkpoint has no tensor " + prefix + name + " of the model's size",
                      "it is of another model or optimizer; check the job");
    }
    const torch::NoGradGuard no_grad;
    out.copy_(found->second.reshape({-1}).narrow(0, first, out.numel()));
  };
}

}  // namespace lockstep::engine
