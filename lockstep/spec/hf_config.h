// Hugging Face config.json as a Model.
#pragma once

#include <string>
#include <vector>

#include "lockstep/spec/model.h"

namespace lockstep::spec {

// `path` is a config.json or a folder that holds one. The name of the result is the folder's (or the file's stem).
// Throws UserError; an architecture or option that would change the numbers and that we do not have is an error,
// never ignored.
Model read_hf_config(const std::string& path);

std::vector<std::string> hf_model_types();

}  // namespace lockstep::spec
