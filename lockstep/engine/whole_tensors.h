// Whole tensors by name, read piece by piece (ParallelModel::fill).
#pragma once

#include <string>

#include "lockstep/parallel/parallel_model.h"

namespace lockstep::engine {

// Reads from `whole` (kept by reference) under prefix + name; bad_input names a missing tensor or one of another size.
parallel::ParallelModel::ReadRange range_reader(const parallel::TensorMap& whole, const std::string& prefix);

}  // namespace lockstep::engine
