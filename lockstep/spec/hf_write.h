// Pieces that the writers of config.json share. Internal to this folder.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "lockstep/spec/model.h"

namespace lockstep::spec::hf {

// As transformers spells it.
const char* activation_name(Activation activation);

// The sizes and rotary positions of a decoder as most classes spell them.
nlohmann::json decoder_sizes(const Model& model);

// The whole of a dense decoder, or of DeepSeek-MoE. It does not say what its class cannot express.
nlohmann::json decoder_config(const Model& model);

}  // namespace lockstep::spec::hf
