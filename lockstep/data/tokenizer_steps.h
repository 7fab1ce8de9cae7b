// The normalizer and the pre_tokenizer of a tokenizer.json.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/data/normalizer.h"
#include "lockstep/data/pre_tokenizer.h"

namespace lockstep::data {

// Append the steps; `depth` sequences may lie inside each other. Throw bad_input at `place` for a step that we do not
// reproduce.
void parse_normalizer(const nlohmann::json& object, const std::string& place, int depth, Normalizer& steps);
// `byte_level` becomes true at a ByteLevel step, which must be the last.
void parse_pre_tokenizer(const nlohmann::json& object, const std::string& place, int depth, PreTokenizer& steps,
                         bool& byte_level);

}  // namespace lockstep::data
