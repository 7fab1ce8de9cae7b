// Weights from and to Hugging Face files. Our parameters carry the names of those files or lie in them as file_layout.h
// says (docs/reference/hugging-face.md); what still differs from file to file is settled here: base-model files without
// their prefix, old spellings, constants stored beside weights, heads that a pretrained file does not have. Files
// themselves are read elsewhere.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "lockstep/nn/layers.h"
#include "lockstep/nn/model.h"

namespace lockstep::nn {

using TensorMap = std::map<std::string, torch::Tensor>;
using TensorSizes = std::map<std::string, std::vector<std::int64_t>>;

// Whole tensors under the names of a file, or of a folder of files.
struct WeightSource {
  std::string name;  // in messages
  TensorSizes sizes;
  // Elements [first, first + out.numel()) of a tensor, in row-major order, into `out` (1-D, contiguous, CPU), converted
  // to its dtype.
  std::function<void(const std::string& file_name, std::int64_t first, torch::Tensor out)> read;
};

struct LoadReport {
  std::vector<std::string> initial;  // parameters that the file lacks: new heads keep their initial values
  std::vector<std::string> unused;   // tensors of the file that this model has no place for
};

// The name under which a file has the tensor that the family calls `family_name` (FilePlace::name); nullopt: it does
// not.
std::optional<std::string> file_name_of(const std::string& family_name,
                                        const std::function<bool(const std::string&)>& file_has,
                                        const spec::Model& spec);

// Whether the model can begin without it: a classifier, pooler or masked-LM head on a pretrained encoder.
bool may_start_anew(const std::string& our_name, const spec::Model& spec);

// Whether a file may carry it although the model has no such parameter: constants (causal masks, rotary frequencies), a
// copy of tied weights, the heads of another task.
bool may_be_unused(const std::string& file_name, const spec::Model& spec);

// Elements [first, first + values.numel()) of this rank's part of a parameter; values are 1-D, any device and dtype.
struct LocalValues {
  torch::Tensor values;
  std::int64_t first = 0;
};

// Fills what this rank holds of `parameters` (nn::declared_parameters: any part of the model, any shard of it) and
// reads nothing else; values_of() says where the values are, empty or undefined ones are skipped, and so are LoRA's
// matrices. Names and sizes of the whole model are compared before anything is read, so that all ranks of any layout
// refuse a file in the same way: bad_input for missing, unexpected or misshaped tensors. Reading errors leave some
// values filled.
LoadReport load_parts(const spec::Model& spec, const std::vector<DeclaredParameter>& parameters,
                      const std::function<LocalValues(const DeclaredParameter&)>& values_of,
                      const WeightSource& source);

// The same from whole tensors in memory, into the model's own parameters and buffers; changes nothing when it throws.
// `source` names the origin in messages.
LoadReport load_weights(TrainableModel& model, const TensorMap& weights, const std::string& source);

// All parameters and buffers that this rank holds, under their full names; the tensors alias the model's.
TensorMap state_dict(const TrainableModel& model);

}  // namespace lockstep::nn
