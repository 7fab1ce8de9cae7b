// Conclusion: what a study found, with intervals. Computed from the trials alone, at any moment of a study.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/tune/objectives/objective.h"
#include "lockstep/tune/study/strategy.h"
#include "lockstep/tune/study/trial.h"

namespace lockstep::tune {

// 95% intervals everywhere.
struct Estimate {
  double value = 0, low = 0, high = 0;
  std::int64_t launches = 0;  // independent launches behind it
};

struct BestFound {
  Config config;
  Estimate throughput;  // from fresh launches after the choice; from the model when there were none (`provisional`)
  bool provisional = false;
  double devices = 1;  // that a launch of it holds
};

// "x% faster than the default": paired over rounds of interleaved launches where there are any.
struct Gain {
  Estimate percent;
  bool paired = false;
};

// Two answers, never mixed up.
struct KnobImportance {
  std::string knob;
  // What reverting it to its default costs, in percent of the best. nullopt: not asked for.
  // A knob that is at its default costs exactly 0 with 0 launches.
  std::optional<Estimate> set_back_percent;
  bool set_back_fails = false;           // reverting it does not run at all; its cost is then 100
  std::vector<std::string> moved_along;  // knobs that constraints forced to follow
  // Share of the variance of log throughput over the valid space that it explains alone (main effect) and with
  // interactions (total), in percent.
  Estimate variance_main_percent;
  Estimate variance_total_percent;
};

struct Interaction {
  std::string first;
  std::string second;
  Estimate variance_percent;
};

// What several objectives leave to choose from: no member is better than another in all of them.
struct Front {
  struct Point {
    Config config;
    std::vector<Estimate> values;  // by objective, as people read them: bytes, dollars
    bool provisional = true;       // from the models: no fresh launches
  };
  std::vector<Objective> objectives;
  std::vector<Point> points;  // fastest first
};

struct Conclusion {
  std::optional<BestFound> best;  // nullopt: nothing ran
  std::optional<Front> front;     // of several objectives; `best` is then its fastest member
  // Did the space say what the default is? Without one there is no baseline and no gain, and `median` is what the best
  // is compared with.
  bool default_given = true;
  std::optional<Estimate> median;  // of the launches that searched: middle, quartiles as its ends
  Config baseline;
  std::optional<Estimate> baseline_throughput;
  std::optional<Gain> gain;
  std::vector<KnobImportance> importance;  // by the cost of reverting, highest first; else by variance
  // The knobs that matter most, highest cost first, at most three, fewer when fewer cost anything. When the third place
  // cannot be decided, `tied` has the (two) knobs of which one belongs there and `top` the ones before them.
  std::vector<std::string> top;
  std::vector<std::string> tied;
  std::vector<Interaction> interactions;  // strongest first, only those that stand out from zero
  std::int64_t trials = 0;
  std::int64_t failed = 0;
  std::int64_t failures_by_outcome[6] = {};  // by Outcome
  double gpu_seconds = 0;
  double launch_spread_percent = 0;  // standard deviation between launches of one configuration
};

Conclusion conclude(const Strategy& strategy, std::span<const Trial> history);

// The document of `lockstep tune --json` (schema lockstep.study/1): best {config, estimate, low, high}, trials, failed,
// importance [...] and more.
nlohmann::json to_json(const Conclusion& conclusion, const Space& space);

}  // namespace lockstep::tune
