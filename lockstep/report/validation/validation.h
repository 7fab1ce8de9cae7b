// A plan that was checked on proxies: predicted beside measured, and what that says about the plan. The value that
// `lockstep validate` fills, as JSON (`lockstep.validation/1`, docs/reference/validate.md) and as a page.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/plan/plan.h"
#include "lockstep/planner/proxy/carry_over.h"
#include "lockstep/planner/proxy/proxy.h"
#include "lockstep/report/document/document.h"
#include "lockstep/spec/job.h"

namespace lockstep::report {

// One run of a proxy with the prediction that was made for it just before.
struct ProxyRun {
  std::string run;  // id in the run store
  std::int64_t seed = 0;
  plan::Candidate predicted;    // has prediction and breakdown
  double predicted_bytes = 0;   // allocated by the first rank at the peak
  planner::StepParts measured;  // of the median step
  double measured_bytes = 0;    // 0: not recorded
  double load = 0;              // the machine's load average when it began
  double share = 1;             // of the cores that the ranks wanted and had; `measured` is times that already

  planner::CheckedStep step() const;
  double log_ratio() const { return step().log_ratio(); }
};

struct CheckedProxy {
  planner::Proxy proxy;
  std::vector<ProxyRun> runs;
  // Whose figures are the proxy's: the run of the middle ratio, so that both are of one moment. `runs` is not empty.
  const ProxyRun& middle() const;
};

struct ValidationMachine {
  std::string kind, hardware, software, backend;
  std::int64_t ranks = 1, threads = 1, cores = 0;
};

struct Validation {
  spec::Job job;
  plan::Plan target;  // has prediction and breakdown
  double made_at = 0;
  ValidationMachine machine;
  std::string profile;  // what priced the proxies
  bool same_device = false;
  std::vector<CheckedProxy> proxies;
  std::vector<planner::Unchecked> unchecked;
};

nlohmann::json to_json(const Validation& validation);

// The same for people; made from the JSON alone, so that page and file cannot differ.
Document validation_document(const nlohmann::json& validation);

}  // namespace lockstep::report
