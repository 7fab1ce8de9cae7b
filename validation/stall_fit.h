// Which runs of a stack stalled, and what layouts they had: the fit of cost::Stalls.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/cost/profile/stalls.h"

namespace lockstep::validation {

// A run beside what the formulas expect of an ordinary one.
struct StallExample {
  cost::StallTerms terms{};
  double slots = 1;
  double measured_seconds = 0, ordinary_seconds = 0;  // of a step
};

// More than one and a half times the time, and by more than a fifth of a second per slot: no constant explains both.
bool is_stalled(const StallExample& example);

// Of fewer runs, or fewer stalled ones, nothing is said (runs = 0). Logistic regression and least squares on the
// logarithm of the extra seconds per slot, both with a normal prior around no dependence on any term.
cost::Stalls fit_stalls(const std::vector<StallExample>& examples);

}  // namespace lockstep::validation
