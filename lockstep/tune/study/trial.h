// Trial: one evaluation of one configuration: what was asked, what came back, what it cost.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/base/enum_names.h"
#include "lockstep/tune/space/config.h"
#include "lockstep/tune/space/space.h"

namespace lockstep::tune {

enum class Outcome {
  kMeasured,
  kOutOfMemory,  // the configuration needs more memory than there is
  kInvalid,      // the program refuses the configuration
  kTimeout,      // it did not get to a measurement in its time
  kHang,         // no sign of life for longer than the hang limit
  kCrash         // anything else
};

constexpr auto names_of(Outcome) {
  return enum_names<Outcome::kCrash>("measured", "oom", "invalid", "timeout", "hang", "crash");
}
using lockstep::to_string;

// Why a trial was made. Only explore and replicate steer the choice of the winner; confirm and control are fresh
// launches after the choice, so that the reported figures are unbiased.
enum class Purpose {
  kBaseline,   // the default configuration, first of all
  kExplore,    // a configuration chosen by the search
  kReplicate,  // a finalist again, on a fresh launch
  kConfirm,    // the winner, after it was chosen
  kControl,    // the default, interleaved with the winner
  kSetBack     // the winner with one knob back at its default
};
constexpr auto names_of(Purpose) {
  return enum_names<Purpose::kSetBack>("baseline", "explore", "replicate", "confirm", "control", "set_back");
}

struct Trial {
  std::int64_t number = 0;  // from 0, in the order they were proposed
  Config config;
  Purpose purpose = Purpose::kExplore;
  std::string set_back_knob;  // kSetBack: its name
  double budget_seconds = 0;  // what it was allowed
  Outcome outcome = Outcome::kMeasured;
  std::vector<double> samples;           // throughputs, higher is better, in order of time, as reported
  double throughput = 0;                 // the launch's figure: mean after warm-up; 0 unless measured
  std::map<std::string, double> values;  // what else was measured, by name (objectives/objective.h); above 0
  double relative_error = 0;   // standard error of that mean within the launch, relative; 0: unknown (one sample)
  bool stopped_early = false;  // racing ended it: clearly worse than the best
  double seconds = 0;          // wall time charged, launch and warm-up included
  double gpu_seconds = 0;      // seconds x devices held
  double started_at = 0;       // unix time
  std::string message;         // one line about a failure; "" otherwise
};

// One object of the study file and of `--json`; trial_from_json throws UserError (exit 2).
nlohmann::json to_json(const Trial& trial, const Space& space);
Trial trial_from_json(const nlohmann::json& document, const Space& space, const std::string& name_for_errors);

inline bool measured(const Trial& trial) { return trial.outcome == Outcome::kMeasured; }

}  // namespace lockstep::tune
