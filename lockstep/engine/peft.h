// LoRA adapters in PEFT's format: a folder with adapter_config.json and adapter_model.safetensors, which PEFT puts on a
// model of transformers.
#pragma once

#include <string>

#include "lockstep/nn/hf_weights.h"
#include "lockstep/parallel/parallel_model.h"
#include "lockstep/spec/job.h"

namespace lockstep::engine {

// Whether `path` is a folder with an adapter_config.json.
bool is_adapter_folder(const std::string& path);

// The folder of the weights that an adapter folder was trained on: what base_model_name_or_path names, as it stands or
// beside the adapter. Throws UserError (environment) where there is no such folder here.
std::string base_of_adapter(const std::string& folder);

// Fills the adapters (and a classifier that was trained with them) of what this rank holds. Every rank of any layout
// refuses the same folders: bad_input for another rank or alpha than `lora`'s, for variants of LoRA that we do not
// have, and for matrices that are missing, unexpected or misshaped.
void load_adapter(const std::string& folder, const spec::Model& spec, const spec::Lora& lora,
                  const std::vector<nn::DeclaredParameter>& parameters,
                  const std::function<nn::LocalValues(const nn::DeclaredParameter&)>& values_of);

// Writes the adapters among whole weights, and a classifier's. `base` is the folder they were trained on ("": not
// said). Not collective. Throws bad_input where a target is packed with others in the family's files (Phi 3's q_proj):
// no adapter of PEFT is the same.
void export_adapter(const parallel::TensorMap& weights, const spec::Model& spec, const spec::Lora& lora,
                    const std::string& base, const std::string& folder);

}  // namespace lockstep::engine
