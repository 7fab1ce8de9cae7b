// Layers of the stages of a pipeline as layouts are written: "8+8+7", "8x3+7".
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::spec {

// Throws bad_input with `place`.
std::vector<std::int64_t> parse_stage_layers(std::string_view text, const SourcePlace& place = {});

}  // namespace lockstep::spec
