// Weights that training starts from: a Hugging Face folder or safetensors file, read slice by slice into any layout.
#pragma once

#include <string>

#include "lockstep/nn/hf_weights.h"
#include "lockstep/parallel/parallel_model.h"
#include "lockstep/spec/job.h"
#include "lockstep/spec/model.h"

namespace lockstep::engine {

// Collective. Every rank reads only what it holds. `path` may be an adapter folder (peft.h): the base it names is read,
// then the adapters. Parameters that the file lacks and may lack (a new classifier head, LoRA adapters) keep their
// initial values. Throws UserError naming file and tensor for anything else.
nn::LoadReport load_pretrained(parallel::ParallelModel& model, const spec::Model& spec, const std::string& path);

// The same into the parameters and buffers of a whole model in host memory. Not collective.
nn::LoadReport load_pretrained(nn::TrainableModel& model, const std::string& path);

// Writes whole weights of a model as a folder that transformers loads. Not collective.
void export_weights_of(const parallel::TensorMap& weights, const spec::Model& spec, const std::string& folder,
                       const std::string& tokenizer_folder);

// Adds each LoRA adapter among whole weights to its layer's weight and takes it out.
void merge_adapters(parallel::TensorMap& weights, const spec::Model& spec, const spec::Lora& lora);

// Collective: rank 0 writes a folder that transformers loads (config.json, safetensors, the tokenizer's files when
// `tokenizer_folder` has them). LoRA adapters are merged into the weights. Blocks until it is on disk.
void export_pretrained(parallel::ParallelModel& model, const spec::Model& spec, const std::string& folder,
                       const std::string& tokenizer_folder = {});

}  // namespace lockstep::engine
