// How the layers of a model are dealt out to the positions of a pipeline.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/plan/layout.h"

namespace lockstep::plan {

// Layers of each of the pp x virtual_stages positions, along the model: layout.stage_layers, or as even as possible
// with the longer ones first.
std::vector<std::int64_t> layers_by_position(const Layout& layout, std::int64_t layers);

}  // namespace lockstep::plan
