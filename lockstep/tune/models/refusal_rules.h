// Refusal rules: what may be the reason that a program refuses a setting, as hypotheses over the values of one or two
// knobs. Programs refuse a value, two values together, a value without the other that it needs, counts beyond a limit,
// and numbers that do not divide what they must. Which of them holds is refusals.h's to find out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/tune/space/space.h"

namespace lockstep::tune {

struct RefusalRule {
  enum class Kind : std::uint8_t {
    kValue,           // first has the value
    kPair,            // first and second have the values
    kNeeds,           // first has the value, second has another than the one that it needs
    kBelow,           // first is below the number
    kAbove,           // or above it
    kPairBelow,       // first has the value, second is below the number
    kPairAbove,       // or above it
    kDivides,         // first does not divide the number
    kProductDivides,  // nor does the product of both
    kMultiple         // first is not a multiple of second
  };
  Kind kind = Kind::kValue;
  std::uint16_t first = 0, second = 0;  // knobs
  double first_value = 0;               // a code (RefusalPoint)
  double second_value = 0;              // a code or a number
  bool operator==(const RefusalRule&) const = default;
};

// A setting as rules see it: by knob the number itself, or which of its choices it is; NaN when inactive.
using RefusalPoint = std::vector<double>;
RefusalPoint refusal_point(const Space& space, const Config& config);

bool holds(const RefusalRule& rule, const RefusalPoint& point);

// Every rule that would explain why one of the points `refused` was, each once. Limits lie between values of `points`.
std::vector<RefusalRule> rules_explaining(const Space& space, std::span<const RefusalPoint> refused,
                                          std::span<const RefusalPoint> points);

// Logarithm of the odds that a program has the rule, before anything ran.
double log_odds(RefusalRule::Kind kind);

}  // namespace lockstep::tune
