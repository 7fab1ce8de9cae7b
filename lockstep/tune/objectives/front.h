// Studies of several objectives: what to try next, and the front that was found.
//
// Each objective has a model of its own (as_throughput()); what is tried next has the largest expected gain in
// hypervolume over the front (Emmerich 2006), the expectation taken over fixed draws from the models' posteriors. The
// front consists of configurations that ran, judged by the models' means, so that one lucky launch is not on it.
// The last fifth of the trials are fresh launches of the front's members: the figures that are reported.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/tune/objectives/objective.h"
#include "lockstep/tune/study/conclusion.h"
#include "lockstep/tune/study/strategy.h"

namespace lockstep::tune {

// A pure function like Strategy::next(), which calls it where options.objectives has several.
std::optional<Proposal> next_for_front(const Space& space, const StrategyOptions& options,
                                       std::span<const Trial> history, std::span<const Trial> pending);

// Of these trials, the front's members, fastest first. `provisional` where the figures are not from fresh launches.
Front find_front(const Space& space, const StrategyOptions& options, std::span<const Trial> history);

// The member with the highest throughput; nullopt: nothing ran.
std::optional<Config> fastest_of_front(const Space& space, const StrategyOptions& options,
                                       std::span<const Trial> history);

// {"objectives": [...], "points": [{"config", "values": {name: {value, low, high, launches}}}, ...]}
nlohmann::json to_json(const Front& front, const Space& space);

}  // namespace lockstep::tune
