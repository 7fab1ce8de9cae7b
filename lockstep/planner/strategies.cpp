#include "lockstep/planner/strategies.h"

#include <algorithm>
#include <map>

#include "lockstep/base/units.h"
#include "lockstep/planner/capabilities.h"
#include "lockstep/planner/compare.h"
#include "lockstep/planner/explain/terms.h"
#include "lockstep/planner/selection.h"

namespace lockstep::planner {
namespace {

constexpr double kSameSpeed = 0.0005;

const plan::Interval& rate_of(const plan::Candidate& candidate) {
  const plan::Prediction& prediction = *candidate.prediction;
  return candidate.batch.sequence_length > 0 ? prediction.tokens_per_second : prediction.samples_per_second;
}

bool is_split(const plan::Layout& layout) { return layout.tp * layout.pp * layout.cp > 1; }

// Kinds of layouts, named by what splits the model.
std::string name_of(const plan::Layout& layout) {
  if (!is_split(layout)) return layout.zero == 0 ? "data parallel" : layout.zero == 3 ? "FSDP" : "sharded optimizer";
  if (layout.pp * layout.cp == 1) return "tensor parallel";
  if (layout.tp * layout.cp == 1) return "pipeline";
  return "hybrid";
}

struct Kind {
  const char* name;
  const char* meaning;
  std::vector<std::map<std::string, std::int64_t>> fixed;  // the best of these
  const char* framework = "";                              // whose own it is: what that can run
};

std::vector<Kind> kinds_of(const SearchRequest& request) {
  const spec::NodeGroup& group = request.cluster.groups.front();
  std::vector<Kind> kinds = {
      {"data parallel", "every GPU holds the whole model", {{{"tp", 1}, {"pp", 1}, {"cp", 1}, {"zero", 0}}}, "ddp"},
      {"sharded optimizer",
       "whole weights everywhere, the optimizer's state shared out (ZeRO stage 1)",
       {{{"tp", 1}, {"pp", 1}, {"cp", 1}, {"zero", 1}}}},
      {"FSDP",
       "all state shared out, weights gathered layer by layer (ZeRO stage 3)",
       {{{"tp", 1}, {"pp", 1}, {"cp", 1}, {"zero", 3}}},
       "fsdp"}};
  if (!request.model.is_language_model()) return kinds;
  if (group.devices_per_node > 1) {
    kinds.push_back({"tensor parallel",
                     "every layer cut over the GPUs of a node",
                     {{{"tp", group.devices_per_node}, {"pp", 1}, {"cp", 1}}}});
  }
  Kind pipeline{"pipeline", "whole layers in stages, one behind the other", {}};
  for (std::int64_t pp = 2; pp <= std::min<std::int64_t>(request.cluster.devices(), request.model.layers); pp *= 2) {
    pipeline.fixed.push_back({{"tp", 1}, {"pp", pp}, {"cp", 1}});
  }
  if (!pipeline.fixed.empty()) kinds.push_back(pipeline);
  Kind hybrid{"hybrid", "layers cut inside a node, stages or shards over the nodes", {}};
  for (std::int64_t tp = 2; tp <= group.devices_per_node; tp *= 2) {
    for (std::int64_t pp = 2; tp * pp <= request.cluster.devices() && pp <= request.model.layers; pp *= 2) {
      hybrid.fixed.push_back({{"tp", tp}, {"pp", pp}, {"cp", 1}});
    }
  }
  if (!hybrid.fixed.empty()) kinds.push_back(hybrid);
  return kinds;
}

Strategy strategy_of(const SearchRequest& request, const Kind& kind) {
  Strategy strategy{.name = kind.name, .meaning = kind.meaning};
  std::vector<SearchRequest> requests;
  for (const auto& fixed : kind.fixed) {
    requests.push_back(request);
    if (request.framework == nullptr) requests.back().framework = find_capabilities(kind.framework);
    requests.back().constraints = {.fixed = fixed, .offload = plan::Offload::kNone};
  }
  for (Option& option : compare(std::move(requests)).options) {
    if (!option.best) {
      if (strategy.problem.empty()) strategy.problem = option.problem;
    } else if (!strategy.best || rate_of(*option.best).expected > rate_of(*strategy.best).expected) {
      strategy.best = std::move(option.best);
    }
  }
  if (strategy.best) strategy.problem.clear();
  return strategy;
}

void judge(Strategy& strategy, const plan::Candidate& planned, const SearchRequest& request) {
  if (!strategy.best) return;
  strategy.runs_on = who_can_run(strategy.best->layout, request.model);
  strategy.gain = rate_of(*strategy.best).expected / rate_of(planned).expected - 1;
  if (strategy.gain > -kSameSpeed || !strategy.best->breakdown || !planned.breakdown) return;
  strategy.loses_in =
      largest_loss(*planned.breakdown, *strategy.best->breakdown, strategy.best->layout, request.cluster).name;
}

}  // namespace

std::vector<Strategy> compare_strategies(const SearchRequest& asked, const plan::Candidate& planned) {
  SearchRequest request = complete(asked);
  request.selection = selection_bias(request);  // all are compared with the plan
  std::vector<Strategy> strategies;
  const std::string mine = name_of(planned.layout);
  for (const Kind& kind : kinds_of(request)) {
    strategies.push_back(strategy_of(request, kind));
    if (kind.name != mine) continue;
    // The plan is one of its kind; where the job's file gave the layout another one may be faster.
    strategies.back().best = planned;
    strategies.back().problem.clear();
    strategies.back().is_planned = true;
  }
  for (Strategy& strategy : strategies) judge(strategy, planned, request);
  return strategies;
}

nlohmann::json to_json(const std::vector<Strategy>& strategies) {
  nlohmann::json all = nlohmann::json::array();
  for (const Strategy& strategy : strategies) {
    nlohmann::json one = {
        {"name", strategy.name},         {"meaning", strategy.meaning},       {"fits", strategy.best.has_value()},
        {"problem", strategy.problem},   {"is_planned", strategy.is_planned}, {"gain", strategy.gain},
        {"loses_in", strategy.loses_in}, {"runs_on", strategy.runs_on}};
    for (const char* key : {"layout", "micro", "per_second", "low", "high", "memory_gib"}) one[key] = nullptr;
    if (strategy.best) {
      const plan::Interval& rate = rate_of(*strategy.best);
      one["layout"] = plan::to_string(strategy.best->layout);
      one["micro"] = strategy.best->batch.micro;
      one["per_second"] = rate.expected;
      one["low"] = rate.low;
      one["high"] = rate.high;
      one["memory_gib"] = strategy.best->memory.total() / kGiB;
    }
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace lockstep::planner
