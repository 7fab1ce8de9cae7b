#include "lockstep/planner/explain/explain.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/units.h"
#include "lockstep/planner/candidate.h"
#include "lockstep/planner/explain/fix.h"
#include "lockstep/planner/explain/reasons.h"
#include "lockstep/planner/explain/terms.h"
#include "lockstep/planner/explain/what_if.h"
#include "lockstep/planner/lost_work.h"
#include "lockstep/planner/search/request.h"
#include "lockstep/planner/selection.h"

namespace lockstep::planner {
namespace {

constexpr std::size_t kLosers = 3;
// More memory that brings this much means that memory is the bottleneck; so is a term of the step with this share.
constexpr double kMemoryBinds = 0.03;
constexpr double kTermBinds = 0.12;

std::string find_bottleneck(const plan::Plan& plan, const std::vector<WhatIf>& changes) {
  for (const WhatIf& change : changes) {
    if (change.change == kTwiceTheMemory && change.gain > kMemoryBinds) {
      return "memory: " + largest_memory_term(plan.best.memory).name;
    }
  }
  const plan::TimeBreakdown& time = *plan.best.breakdown;
  const Term exposed = largest_exposed(time, plan.best.layout, plan.cluster);
  return exposed.value > kTermBinds * time.total() ? exposed.name : "compute";
}

// Nothing is asked of the layout but how many replicas and how large a batch.
bool is_data_parallel(const Constraints& constraints) {
  if (constraints.recompute.value_or(plan::Recompute::kNone) != plan::Recompute::kNone) return false;
  if (constraints.offload.value_or(plan::Offload::kNone) != plan::Offload::kNone) return false;
  return std::all_of(constraints.fixed.begin(), constraints.fixed.end(), [](const auto& axis) {
    const bool free = axis.first == "dp" || axis.first == "micro" || axis.first == "accumulation";
    return free || axis.second == (axis.first == "zero" ? 0 : 1);
  });
}

void require_lost_work(const SearchRequest& request, const plan::Candidate& best) {
  if (!request.requires_max_lost) return;
  if (const auto problem = find_lost_work_problem(request, best)) throw *problem;
}

// A profile measured on this machine has tables of its shapes: they price what the engine runs, data parallelism over
// all ranks, better than the constants do that any other layout is priced with.
Explained explain_measured(Explained explained) {
  const SearchRequest& request = explained.request;
  const auto& fixed = request.constraints.fixed;
  const auto fixed_or = [&](const char* key, std::int64_t other) {
    return fixed.contains(key) ? fixed.at(key) : other;
  };
  const bool given = is_wholly_fixed(request.constraints);
  plan::Layout layout;
  layout.dp = given ? fixed.at("dp") : request.cluster.devices();
  layout.precision = request.precisions.front();
  plan::BatchPlan batch{.micro = fixed_or("micro", 1),
                        .global_sequences = request.global_sequences,
                        .sequence_length = request.sequence_length};
  const std::int64_t samples = layout.dp * batch.micro;  // of one micro-step on all ranks
  if (samples < 1 || request.global_sequences % samples != 0) {
    throw bad_input(fmt::format("a batch of {} does not divide over {} ranks at micro-batch {}",
                                request.global_sequences, layout.dp, batch.micro),
                    "change --global-batch or --micro");
  }
  batch.accumulation = request.global_sequences / samples;
  if (const auto problem = find_refusal(request, layout, batch)) throw bad_input(problem->text, problem->fix);
  const Stopwatch watch;
  plan::Plan& plan = explained.plan;
  plan.model = request.model;
  plan.cluster = request.cluster;
  plan.profile = request.profile.identity();
  plan.best = candidate_of(request, run_of(request, layout, batch));
  require_lost_work(request, plan.best);
  plan.best.reasons.insert(plan.best.reasons.begin(), layout_reason(layout, given));
  plan.search = {.candidates = 1, .feasible = 1, .seconds = watch.seconds()};
  explained.bottleneck = find_bottleneck(plan, {});
  explained.sensitivity = sensitivity_of(request, plan.best, {});
  return explained;
}

// Who might have been chosen: the best of the search and the best of every other kind.
std::vector<Ranked> rivals_of(const SearchResult& result) {
  std::vector<Ranked> rivals(result.best.begin() + 1, result.best.end());
  for (const auto& [family, ranked] : result.best_of_family) rivals.push_back(ranked);
  return rivals;
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
  free.selection = selection_bias(request);  // so that the two compare
  const std::optional<Ranked> own = find_best(free);
  if (!own || own->layout == given.layout) return;
  const cost::Pricer pricer(request.model, request.cluster, request.profile, pricer_options(request));
  alternatives.push_back(to_candidate(free, pricer, *own));
  alternatives.back().why_not =
      "not asked for: the planner's own choice, " + describe_loss(given, *own, free, /*competed=*/false);
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
  require_trained(request);
  if (!request.profile.fitted && is_data_parallel(request.constraints)) return explain_measured(std::move(explained));
  const SearchResult result = search(request);
  if (result.best.empty()) throw nothing_fits(request, result);
  const cost::Pricer pricer(request.model, request.cluster, request.profile, pricer_options(request));
  const Ranked& best = result.best.front();
  plan::Plan& plan = explained.plan;
  plan.model = request.model;
  plan.cluster = request.cluster;
  plan.profile = request.profile.identity();
  plan.search = result.summary;
  plan.best = to_candidate(request, pricer, best);
  require_lost_work(request, plan.best);
  plan.best.reasons = reasons_for(request, pricer, result);
  add_snapshots(run_of(request, best.layout, best.batch), plan.best);
  for (const Loser& loser : best_losers(request, result, kLosers)) {
    plan.alternatives.push_back(loser_candidate(request, pricer, best, loser));
  }
  if (is_wholly_fixed(request.constraints)) add_own_choice(request, best, plan.alternatives);
  if (options.what_ifs) explained.what_ifs = what_ifs(request, result);
  if (options.what_ifs) explained.strategies = compare_strategies(request, plan.best);
  explained.bottleneck =
      find_bottleneck(plan, options.what_ifs ? explained.what_ifs : std::vector{twice_the_memory(request, result)});
  explained.sensitivity = sensitivity_of(request, plan.best, rivals_of(result));
  explained.passes = result.passes;
  explained.stages = pricer.stages(best.layout, best.batch);
  for (const Ranked& ranked : result.pareto) explained.pareto.push_back(to_candidate(request, pricer, ranked));
  return explained;
}

nlohmann::json to_json(const Explained& explained) {
  nlohmann::json json = plan::to_json(explained.plan);
  json["bottleneck"] = explained.bottleneck;
  nlohmann::json& changes = json["what_ifs"] = nlohmann::json::array();
  for (const WhatIf& change : explained.what_ifs) {
    changes.push_back({{"change", change.change},
                       {"fits", change.layout.has_value()},
                       {"layout", change.layout ? plan::to_string(*change.layout) : ""},
                       {"per_second", change.per_second},
                       {"gain", change.gain},
                       {"idle_devices", change.idle_devices}});
  }
  json["strategies"] = to_json(explained.strategies);
  json["sensitivity"] = to_json(explained.sensitivity);
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
