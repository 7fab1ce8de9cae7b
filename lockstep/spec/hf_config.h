// Hugging Face config.json as a Model.
#pragma once

#include <filesystem>
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

}  // namespace lockstep::spec
