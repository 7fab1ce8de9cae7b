// Runbook: a plan as a research team executes it, on about six pages: the decision and why, budgets, commands, what
// happens when a node dies, drills, alerts, money, how sure it is, and the words used.
//
//   runbook_facts()   every figure and command of it, computed from the plan (schema lockstep.runbook/1)
//   make_runbook()    the document; it has no figure that is not quoted from the facts
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/plan/plan.h"
#include "lockstep/planner/compare.h"
#include "lockstep/planner/smaller_worlds.h"
#include "lockstep/planner/strategies.h"
#include "lockstep/report/document/document.h"
#include "lockstep/schedulers/settings.h"
#include "lockstep/sim/failures/comparison.h"
#include "lockstep/spec/job.h"

namespace lockstep::report {

inline constexpr const char* kHere = "local";  // the scheduler of runs on this machine

struct RunbookInput {
  nlohmann::json plan;  // lockstep.plan/1, with the explanation where there is one
  plan::Plan planned;   // the same; has a prediction
  spec::Job job;        // that trains it
  // As commands name them.
  std::string job_file, plan_file;
  std::vector<std::string> overrides;
  bool makes_plan = false;  // plan_file is made by the first command
  std::string job_text;     // of a job file that nobody has written yet; "": it is there
  std::string directory;    // that the commands are typed in: paths below it are shown from there
  std::string scheduler = kHere;
  schedulers::LaunchSettings launch;

  double tokens = 0;  // of the whole job (samples for images); 0: not known
  std::vector<planner::Strategy> strategies;
  planner::Scaling scaling;
  planner::SmallerWorlds smaller;
  sim::GoodputQuestion question;  // that the study answers
  sim::GoodputStudy goodput;
  nlohmann::json validation;  // lockstep.validation/1; null: it was not validated
  std::string version;        // of lockstep
  double made_at = 0;         // unix time
};

// Keys: docs/reference/runbook.md.
nlohmann::json runbook_facts(const RunbookInput& input);

struct Runbook {
  Document document;
  nlohmann::json facts;  // with "figures": every figure of the document, its path in the facts and how it is written
};

Runbook make_runbook(const RunbookInput& input);

}  // namespace lockstep::report
