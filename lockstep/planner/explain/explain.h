// Explanation: why this plan, its bottleneck, who lost and by how much, and what one change would bring.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/planner/explain/sensitivity.h"
#include "lockstep/planner/search/search.h"
#include "lockstep/planner/strategies.h"

namespace lockstep::planner {

struct WhatIf {
  std::string change;                  // "4 NICs a node instead of 8", "16 more GPUs (same batch)", "full recompute"
  std::optional<plan::Layout> layout;  // of the best plan after the change; none: nothing fits
  double per_second = 0;               // tokens (samples for images) of that plan; 0: nothing fits
  double gain = 0;  // relative to the plan: in per_second, or in dollars saved where money is the objective
  std::int64_t idle_devices = 0;  // that the changed cluster leaves unused
};

// A Plan with reasons, why_not of the three best losers (each of another kind than the plan), and what-ifs.
struct Explained {
  SearchRequest request;  // as searched: defaults filled in
  plan::Plan plan;
  std::string bottleneck;            // "compute", "memory: activations", "tensor-parallel traffic over NVLink", ...
  std::vector<WhatIf> what_ifs;      // best gain first
  std::vector<Strategy> strategies;  // FSDP, tensor parallel, pipeline or hybrid? Empty without what-ifs
  Sensitivity sensitivity;           // what the plan rests on; empty where nothing could be priced
  std::vector<PassReport> passes;
  std::vector<cost::StagePrice> stages;  // of the plan, one without a pipeline; empty for images
  std::vector<plan::Candidate> pareto;   // throughput against memory against dollars, fastest first
};

struct ExplainOptions {
  bool what_ifs = true;
};

// Searches, prices the what-ifs, explains. Nothing fits: throws UserError (exit code 3) with the term, the excess and
// the nearest fix; so does a bound on lost work that is required and cannot be kept (lost_work.h). A request whose
// layout is wholly fixed (constraints_of) and does not fit: the same, naming the nearest layout that fits. With a
// profile measured on this machine (tables, no fitted constants) data parallelism is what is asked for unless a
// constraint says otherwise, and is priced without a search (candidate.h).
Explained explain(const SearchRequest& request, const ExplainOptions& options = {});

// Schema `lockstep.plan/1` of the plan with `bottleneck`, `what_ifs`, `sensitivity`, `passes`, `stages` and `pareto`
// beside its keys; what plan::read_plan() reads.
nlohmann::json to_json(const Explained& explained);

}  // namespace lockstep::planner
