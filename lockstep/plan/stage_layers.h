// How the layers of a model are dealt out to the positions of a pipeline.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/plan/layout.h"

namespace lockstep::plan {

// Layers of each of the pp x virtual_stages positions, along the model: layout.stage_layers, or as even as possible
// with the longer ones first.
std::vector<std::int64_t> layers_by_position(const Layout& layout, std::int64_t layers);

// The same for a model. A scripted module has units instead of layers: they are dealt out so that the slowest position
// takes the least time, cut where one tensor goes on. The layout is valid for the model.
std::vector<std::int64_t> layers_by_position(const Layout& layout, const spec::Model& model);

// The most positions that a pipeline of a scripted module can have: one more than its units that one tensor enters.
std::int64_t most_positions(const spec::ScriptFacts& facts);

}  // namespace lockstep::plan
