// A layout that does not work is answered with the nearest one that does. Pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "lockstep/plan/layout.h"
#include "lockstep/spec/model.h"

namespace lockstep::plan {

// The layout of exactly `ranks` ranks that `model` can run (find_layout_problem()), that `works` accepts and that
// differs least from `wanted`: in the fewest axes and choices, of equally many by the smallest factors, of equal ones
// with the larger dp. Recompute, offload and precision are kept; so are ZeRO stage, schedule, chunks, uneven stages and
// exchanges where they still make sense. Nothing where there is no such layout (ranks below 1 or out of range).
std::optional<Layout> nearest_valid_layout(const Layout& wanted, const spec::Model& model, std::int64_t ranks,
                                           const std::function<bool(const Layout&)>& works = {});

}  // namespace lockstep::plan
