// Tensors by name: what checkpoints keep.
#pragma once

#include <torch/types.h>

#include <map>
#include <string>

namespace lockstep::parallel {

// Tensors may be views of live state: write or clone them before the next step.
using TensorMap = std::map<std::string, torch::Tensor>;

}  // namespace lockstep::parallel
