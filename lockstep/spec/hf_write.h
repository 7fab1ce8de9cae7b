// Pieces that the writers of config.json share. Internal to this folder.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "lockstep/spec/model.h"

namespace lockstep::spec::hf {

// As transformers spells it.
const char* activation_name(Activation activation);

// The sizes and rotary positions of a decoder as most classes spell them.
nlohmann::json decoder_sizes(const Model& model);

// The way back from balancing_of() (hf_read.h).
void add_balancing(const Model& model, nlohmann::json& config);

// The whole of a dense decoder, of DeepSeek-MoE or of Qwen 3's experts. It does not say what its class cannot express.
nlohmann::json decoder_config(const Model& model);

}  // namespace lockstep::spec::hf
