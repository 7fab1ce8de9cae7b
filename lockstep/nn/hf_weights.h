// Weights from and to Hugging Face state dicts (GPT-2, Llama), as name -> tensor maps; files are read elsewhere.
#pragma once

#include <map>
#include <string>

#include <torch/types.h>

#include "lockstep/nn/model.h"

namespace lockstep::nn {

using TensorMap = std::map<std::string, torch::Tensor>;

// Copies `weights` into the model's parameters and buffers, converting dtype and device. Accepts names with or
// without the base-model prefix ("transformer." for GPT-2, "model." for Llama), and skips what Hugging Face stores
// beside weights (attention masks, rotary frequencies, a tied lm_head equal to the embedding). `source` names the
// origin in errors. Throws UserError, before anything is changed, for missing, unexpected or misshaped tensors.
void load_weights(TrainableModel& model, const TensorMap& weights, const std::string& source);

// All parameters and buffers under their full names; the tensors alias the model's.
TensorMap state_dict(const TrainableModel& model);

}  // namespace lockstep::nn
