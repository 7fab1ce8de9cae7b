// What the names of well-known knobs say about memory before anything ran: more micro-batch needs more of it, a higher
// ZeRO stage less, NCCL's algorithm none to speak of. A belief, not a rule: the feasibility model unlearns it from
// trials.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/tune/space/space.h"

namespace lockstep::tune {

struct KnobNature {
  // Memory from the low to the high end of the knob: +1 more, -1 less, 0 hardly any; nullopt: the name says nothing.
  std::optional<double> memory;
};

// "Micro-Batch" and "micro_batch" are one name: lower case without separators.
std::string compact_name(std::string_view name);
// A lower-case word that switches something on.
bool is_on(const std::string& word);
std::optional<double> number_of(const Value& value);  // nullopt: a word or a truth value

KnobNature nature_of(const Knob& knob);

// Memory that a choice of an unordered knob needs, relative to the other choices in [-1, 1] ("full" recompute: -1,
// "none": +1); nullopt: unknown.
std::optional<double> memory_of_choice(const Knob& knob, const Value& value);

}  // namespace lockstep::tune
