// Hugging Face config.json as a Model, and the way back.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/spec/model.h"

namespace lockstep::spec {

// `path` is a config.json or a folder that holds one. The name of the result is the folder's (or the file's stem).
// Throws UserError; an architecture or option that would change the numbers and that we do not have is an error,
// never ignored.
Model read_hf_config(const std::string& path);

// The same of a config.json's text; `file` names it in errors and is where the name of the result comes from.
Model parse_hf_config(std::string_view text, const std::filesystem::path& file);

std::vector<std::string> hf_model_types();

// The config.json of the class of transformers that computes what `model` does: GPT2LMHeadModel, LlamaForCausalLM,
// MixtralForCausalLM, BertForMaskedLM, MambaForCausalLM, or the ...ForSequenceClassification of the same family when
// there are classes. Read back it gives the same model, but for the name and global_batch_tokens, which it does not
// hold. Two settings of experts that transformers does not know are written under keys of ours, which it ignores:
// router_z_loss_coef and expert_capacity_factor. Throws UserError (bad input) for a language model that no
// such class computes. Image models get a config.json of our own ("model_type": "lockstep"), which only we read.
nlohmann::json to_hf_config(const Model& model);

}  // namespace lockstep::spec
