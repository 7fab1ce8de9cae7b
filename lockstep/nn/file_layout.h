// Where the parameters of a model lie in the files of its family. Most families have them under our names, whole. Phi
// 3, GPT-NeoX and Falcon pack projections into one tensor; GPT-NeoX and Falcon have names of their own.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <torch/types.h>

#include "lockstep/nn/placement.h"
#include "lockstep/spec/model.h"

namespace lockstep::nn {

struct FilePlace {
  std::string name;                 // of the file's tensor
  std::vector<std::int64_t> sizes;  // of the file's tensor
  // Its rows (dim 0) that are ours, in our order; empty: all of it.
  std::vector<Segment> rows;

  // The runs of our elements [first, first + count) in the file's tensor: Run::local is ours, Run::whole the file's.
  std::vector<Run> runs(std::int64_t first, std::int64_t count) const;
};

// The place of parameter (or buffer) `our_name` of these sizes.
FilePlace file_place(const std::string& our_name, const std::vector<std::int64_t>& our_sizes, const spec::Model& spec);

// What the names of the family's base model begin with: files of that alone omit it.
std::string base_prefix(const spec::Model& spec);

// Whole tensors under our names as those of a file. Tensors that lie in a file as they are are not copied.
std::map<std::string, torch::Tensor> to_file_tensors(std::map<std::string, torch::Tensor> ours,
                                                     const spec::Model& spec);

}  // namespace lockstep::nn
