// Choice: the setting that a study recommends.
#pragma once

#include <optional>
#include <span>

#include "lockstep/tune/study/evidence.h"

namespace lockstep::tune {

// The leader of the search, with every knob back at its default whose change buys nothing by the model: nobody should
// carry a setting that does nothing. What it may lose by that is bounded to a few tenths of a percent. Where the space
// has no default, or the default never ran, the leader as it is. nullopt: nothing ran.
std::optional<Config> choose_setting(const Space& space, const Evidence& evidence, std::span<const Trial> history);

}  // namespace lockstep::tune
