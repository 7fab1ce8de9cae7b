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

// Throws UserError (exit code 2) unless `model` can run `layout` and it has exactly `ranks` ranks; the message names
// what is wrong and the nearest layout that works.
void require_runnable_layout(const Layout& layout, const spec::Model& model, std::int64_t ranks);

// Throws UserError (exit code 2) unless sequences of `tokens` (0: none) divide into the equal pieces that context ranks
// and sequence parallel ranks hold; the message names the lengths that do.
void require_whole_sequence_pieces(const Layout& layout, const spec::Model& model, std::int64_t tokens);

}  // namespace lockstep::plan
