// Verification: how trials are shared out, and what is launched after the winner was chosen.
//
// Fresh launches of the winner (confirm), of the default (control) and of the winner with one knob reverted alternate
// in rounds, so that a machine that drifts does not favour one of them.
#pragma once

#include <span>

#include "lockstep/tune/study/evidence.h"
#include "lockstep/tune/study/strategy.h"

namespace lockstep::tune {

// Trials that the study can still hope for, those made included: options.trials, or fewer when the GPU seconds run out
// first at the average price so far.
std::int64_t affordable_trials(const StrategyOptions& options, std::span<const Trial> history);

Allocation allocate(const Space& space, const StrategyOptions& options, std::int64_t trials);

std::optional<Proposal> next_verification(const Space& space, const StrategyOptions& options, const Evidence& evidence,
                                          std::span<const Trial> history, std::span<const Trial> pending,
                                          std::int64_t affordable);

}  // namespace lockstep::tune
