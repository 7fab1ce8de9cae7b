#include "lockstep/planner/explain.h"

#include <fmt/format.h>

#include "lockstep/base/units.h"
#include "lockstep/planner/explain_fix.h"
#include "lockstep/planner/explain_reasons.h"
#include "lockstep/planner/explain_terms.h"
#include "lockstep/planner/explain_what_if.h"

namespace lockstep::planner {
namespace {

constexpr std::size_t kLosers = 3;
// More memory that brings this much means that memory binds; a term of the step with this share binds.
constexpr double kMemoryBinds = 0.03;
constexpr double kTermBinds = 0.12;

std::string what_binds(const SearchRequest& request, const Ranked& plan, const std::vector<WhatIf>& changes) {
  for (const WhatIf& change : changes) {
    if (change.change == kTwiceTheMemory && change.gain > kMemoryBinds) {
      return "memory: " + largest_memory_term(plan.price.memory).name;
    }
  }
  const Term exposed = largest_exposed(plan.price.time, plan.layout, request.cluster);
  return exposed.value > kTermBinds * plan.price.step_seconds() ? exposed.name : "compute";
}

plan::Candidate loser_candidate(const SearchRequest& request, const cost::Pricer& pricer, const Ranked& plan,
                                const Loser& loser) {
  plan::Candidate candidate = to_candidate(request, pricer, loser.candidate);
  candidate.why_not = fmt::format("{}: {}", loser.family, describe_loss(plan, loser.candidate, request));
  return candidate;
}

// Beside a layout that was given: what the planner would have chosen.
void add_own_choice(const SearchRequest& request, const Ranked& given, std::vector<plan::Candidate>& alternatives) {
  SearchRequest free = request;
  free.constraints = {};
  const std::optional<Ranked> own = find_best(free);
  if (!own || own->layout == given.layout) return;
  const cost::Pricer pricer(request.model, request.cluster, request.profile,
                            {.sequence_length = request.sequence_length, .optimizer = request.optimizer});
  alternatives.push_back(to_candidate(free, pricer, *own));
  alternatives.back().why_not = "not asked for: the planner's own choice, " + describe_loss(given, *own, free);
}

nlohmann::json stage_to_json(const cost::StagePrice& stage) {
  return {{"device", stage.device},
          {"layers", stage.layers},
          {"in_flight", stage.in_flight},
          {"forward_seconds", stage.forward_seconds},
          {"backward_seconds", stage.backward_seconds},
          {"send_seconds", stage.send_seconds},
          {"memory_gib", stage.memory.total() / kGiB},
          {"capacity_gib", stage.memory.capacity / kGiB}};
}

}  // namespace

Explained explain(const SearchRequest& asked, const ExplainOptions& options) {
  Explained explained;
  explained.request = complete(asked);
  const SearchRequest& request = explained.request;
  const SearchResult result = search(request);
  if (result.best.empty()) throw nothing_fits(request, result);
  const cost::Pricer pricer(request.model, request.cluster, request.profile,
                            {.sequence_length = request.sequence_length, .optimizer = request.optimizer});
  const Ranked& best = result.best.front();
  plan::Plan& plan = explained.plan;
  plan.model = request.model;
  plan.cluster = request.cluster;
  plan.profile = request.profile.identity();
  plan.search = result.summary;
  plan.best = to_candidate(request, pricer, best);
  plan.best.reasons = reasons_for(request, pricer, result);
  for (const Loser& loser : best_losers(request, result, kLosers)) {
    plan.alternatives.push_back(loser_candidate(request, pricer, best, loser));
  }
  if (is_wholly_fixed(request.constraints)) add_own_choice(request, best, plan.alternatives);
  if (options.what_ifs) explained.what_ifs = what_ifs(request, result);
  explained.binds = what_binds(request, best, explained.what_ifs);
  explained.passes = result.passes;
  explained.stages = pricer.stages(best.layout, best.batch);
  for (const Ranked& ranked : result.pareto) explained.pareto.push_back(to_candidate(request, pricer, ranked));
  return explained;
}

nlohmann::json to_json(const Explained& explained) {
  nlohmann::json json = plan::to_json(explained.plan);
  json["binds"] = explained.binds;
  nlohmann::json& changes = json["what_ifs"] = nlohmann::json::array();
  for (const WhatIf& change : explained.what_ifs) {
    changes.push_back({{"change", change.change},
                       {"fits", change.layout.has_value()},
                       {"layout", change.layout ? plan::to_string(*change.layout) : ""},
                       {"per_second", change.per_second},
                       {"gain", change.gain},
                       {"idle_devices", change.idle_devices}});
  }
  nlohmann::json& passes = json["passes"] = nlohmann::json::array();
  for (const PassReport& pass : explained.passes) {
    passes.push_back({{"name", pass.name}, {"seconds", pass.seconds}, {"in", pass.in}, {"out", pass.out}});
  }
  nlohmann::json& stages = json["stages"] = nlohmann::json::array();
  for (const cost::StagePrice& stage : explained.stages) stages.push_back(stage_to_json(stage));
  plan::Plan front = explained.plan;
  front.alternatives = explained.pareto;
  json["pareto"] = plan::to_json(front).at("alternatives");
  return json;
}

}  // namespace lockstep::planner
