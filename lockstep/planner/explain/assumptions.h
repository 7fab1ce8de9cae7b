// The assumptions of one plan as dials: what each is called, how far it may be turned, and the step that follows.
// Internal to this folder.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/cost/price.h"
#include "lockstep/plan/run.h"
#include "lockstep/planner/search/search.h"

namespace lockstep::planner {

// How an assumption is settled.
enum class Settle { kDevice, kRun, kFailures, kSave, kDrill };

// One constant of the profile.
struct Dial {
  std::string name, meaning, unit;
  double value = 0;
  double spread = 0;           // standard deviation of its logarithm
  double least = 0, most = 0;  // that it can be
  Settle settle = Settle::kRun;
  std::function<double(double value)> step_seconds;  // of the plan
};

// The constants that price `run`. Dials of formulas turn `pricer`, which stays as the last one left it; of tables and
// of the fused step `pricer` is not used. All references must outlive the dials.
std::vector<Dial> dials_of(const plan::Run& run, const cost::Profile& profile, cost::Pricer& pricer);

// What settles it, and by which command.
std::string measurement_of(Settle settle);
std::string command_of(Settle settle, const plan::Run& run);

}  // namespace lockstep::planner
