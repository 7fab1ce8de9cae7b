// Named tensors as samples: what models of any kind of input are trained on.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

struct TensorNames {
  std::vector<std::string> inputs;  // in the order the model reads them; empty: all but the target, by name
  std::string target;               // "": none
};

// A safetensors file, or a folder of them (in the order of their names, one behind the other). The first dim of every
// named tensor counts the samples; the others are the same in all files. Tensors are read range by range when samples
// are asked for, nothing is held. Throws UserError: exit 4 for a file that is missing, 2 for one without these tensors
// or with tensors that do not fit together.
std::shared_ptr<const Dataset> open_tensor_files(const std::filesystem::path& path, const TensorNames& names);

// Samples [begin, end) of another.
std::shared_ptr<const Dataset> part_of(std::shared_ptr<const Dataset> whole, std::int64_t begin, std::int64_t end);

}  // namespace lockstep::data
