// The answer of `lockstep simulate PLAN`: the plan's step as it is played, beside the closed form and beside what it
// would be without what was injected or changed.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cost/profile/profile.h"
#include "lockstep/plan/plan.h"
#include "lockstep/sim/step/record.h"
#include "lockstep/sim/step/simulation.h"

namespace lockstep::sim {

struct StepStudyRequest {
  plan::Plan plan;
  cost::Profile profile;
  std::vector<std::string> injections, what_ifs;  // questions.h
  std::optional<double> jitter;                   // instead of the profile's spread of nodes
  bool contention = true;
  std::int64_t steps = 1;
  std::uint64_t seed = 1;
};

struct StepStudy {
  StepStudyRequest request;
  plan::Plan plan;  // the request's, with the cluster and the prediction of the what-ifs
  StepsQuestion question;
  Simulation simulation;
  double step_seconds = 0;   // mean, stalls not counted
  double stall_seconds = 0;  // of all checkpoints
  std::int64_t checkpoints = 0;
  // Of the same question, for comparison.
  double closed_form_seconds = 0;            // Pricer::price()
  double closed_form_full_idle_seconds = 0;  // the same with idle time as the schedule has it, not as fitted
  double without_contention_seconds = 0;     // and undisturbed
  double undisturbed_seconds = 0;
  double before_what_if_seconds = 0;  // undisturbed, on the plan's own cluster
  double planned_seconds = 0;         // what the plan file says; 0: nothing
  double mfu_seconds = 0;             // MFU of a step that takes one second
  std::string asked;                  // one line
};

// Throws UserError for injections and what-ifs that are not understood, and as Pricer does.
StepStudy study_step(const StepStudyRequest& request);

RecordRequest record_request(const StepStudy& study, const std::string& name, double ended_at);

nlohmann::json to_json(const StepStudy& study);  // lockstep.simulation/1

}  // namespace lockstep::sim
