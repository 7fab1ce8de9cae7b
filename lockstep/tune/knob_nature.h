// What the names of well-known knobs say about memory before anything ran: more micro-batch needs more of it, a higher
// ZeRO stage less, NCCL's algorithm none to speak of. A belief, not a rule: the feasibility model unlearns it from
// trials.
#pragma once

#include <optional>

#include "lockstep/tune/space.h"

namespace lockstep::tune {

struct KnobNature {
  // Memory from the low to the high end of the knob: +1 more, -1 less, 0 hardly any; nullopt: the name says nothing.
  std::optional<double> memory;
  bool communication = false;  // NCCL and its like: fails by being invalid, not by memory
};

KnobNature nature_of(const Knob& knob);

// Memory that a choice of an unordered knob needs, relative to the other choices in [-1, 1] ("full" recompute: -1,
// "none": +1); nullopt: unknown.
std::optional<double> memory_of_choice(const Knob& knob, const Value& value);

}  // namespace lockstep::tune
