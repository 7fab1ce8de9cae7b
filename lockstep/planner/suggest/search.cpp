#include "lockstep/planner/suggest/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/planner/search/objective.h"
#include "lockstep/planner/search/space.h"

namespace lockstep::planner {
namespace {

// Pricing one candidate takes about a microsecond of one core.
constexpr std::int64_t kMostCandidates = 30'000;
constexpr std::int64_t kSurveyed = 10'000;
constexpr std::size_t kRefinedAxes = 12;
constexpr std::size_t kRefinedAxesOfExperts = 6;  // each has more ways to shard
constexpr std::int64_t kLargestSurveyedMicro = 8;
constexpr std::int64_t kLargestSurveyedCp = 8;
constexpr std::int64_t kLongSequence = 16384;  // from here on more context parallelism may pay
constexpr std::int64_t kLargestGrowth = 1024;
// Share of the bubble that a better schedule than 1F1B takes away, for ranking axes that were surveyed under 1F1B.
constexpr double kBubbleSaved = 0.8;

constexpr std::array kOnlyInMemory{plan::Offload::kNone};

// Candidates whose weights and optimizer fit: the others cost no time.
std::int64_t count_candidates(const SearchRequest& request, std::int64_t enough) {
  const Space space(request);
  const cost::Pricer pricer(request.model, request.cluster, request.profile, pricer_options(request));
  const double capacity = request.cluster.groups.front().device.memory_bytes;
  std::int64_t count = 0;
  for (const plan::Layout& mesh : space.meshes(kOnlyInMemory)) {
    if (space.find_problem(mesh) || pricer.memory_floor(mesh) > capacity) continue;
    count += space.count(mesh);
    if (count > enough) break;
  }
  return count;
}

// Nothing where the constraints leave no layout at all.
std::optional<SearchResult> try_search(const SearchRequest& request) {
  try {
    return search(request);
  } catch (const UserError& error) {
    if (error.code() != ExitCode::kUsage) throw;
    return std::nullopt;
  }
}

void take_families(SearchResult& into, const SearchResult& from) {
  for (const auto& [name, ranked] : from.best_of_family) {
    const auto [place, is_new] = into.best_of_family.emplace(name, ranked);
    if (!is_new && ranked.price.fits() && (!place->second.price.fits() || ranked.score > place->second.score)) {
      place->second = ranked;
    }
  }
}

// Every candidate of `from` is one of the same question as those of `into`.
void take(SearchResult& into, const SearchResult& from, std::size_t keep) {
  into.best.insert(into.best.end(), from.best.begin(), from.best.end());
  std::stable_sort(into.best.begin(), into.best.end(),
                   [](const Ranked& a, const Ranked& b) { return a.score > b.score; });
  if (into.best.size() > keep) into.best.resize(keep);
  if (into.nearest.empty()) into.nearest = from.nearest;
  take_families(into, from);
  into.summary.candidates += from.summary.candidates;
  into.summary.feasible += from.summary.feasible;
  into.summary.seconds += from.summary.seconds;
}

// Families that the winner itself belongs to say nothing about it.
void drop_own_families(SearchResult& result) {
  if (result.best.empty()) return;
  const plan::Layout& layout = result.best.front().layout;
  const auto drop = [&](const char* key, const auto& value) {
    result.best_of_family.erase(fmt::format("{}={}", key, value));
  };
  drop("devices", layout.world());
  for (const plan::LayoutField& field : plan::layout_fields()) drop(field.name(), field.text(layout));
  drop("micro", result.best.front().batch.micro);
}

using Axes = std::array<std::int64_t, 3>;  // pp, tp, cp

Axes axes_of(const Ranked& ranked) { return {ranked.layout.pp, ranked.layout.tp, ranked.layout.cp}; }

double optimistic_score(const Ranked& ranked) {
  const double step = ranked.price.step_seconds();
  return ranked.score * step / (step - kBubbleSaved * ranked.price.time.bubble);
}

// The best candidate of each (pp, tp, cp), most promising first.
std::vector<Ranked> promising(const SearchResult& survey, std::size_t count) {
  std::vector<Ranked> all = survey.best;
  for (const auto& [name, ranked] : survey.best_of_family) {
    if (ranked.price.fits()) all.push_back(ranked);
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Ranked& a, const Ranked& b) { return optimistic_score(a) > optimistic_score(b); });
  std::set<Axes> seen;
  std::erase_if(all, [&](const Ranked& ranked) { return !seen.insert(axes_of(ranked)).second; });
  if (all.size() > count) all.resize(count);
  return all;
}

SearchRequest survey_of(const SearchRequest& request, plan::Offload offload) {
  SearchRequest survey = request;
  Constraints& limits = survey.constraints;
  limits.offload = offload;
  if (request.sequence_length < kLongSequence) limits.at_most["cp"] = kLargestSurveyedCp;
  limits.at_most["tp"] = request.cluster.groups.front().devices_per_node;
  limits.schedule = plan::Schedule::kOneForwardOneBackward;
  limits.stage_layers = std::vector<std::int64_t>();
  limits.sequence_parallel = true;
  if (!limits.fixed.contains("micro")) limits.at_most["micro"] = kLargestSurveyedMicro;
  survey.keep = 512;
  while (limits.at_most["micro"] > 1 && !limits.fixed.contains("micro") &&
         count_candidates(survey, kSurveyed) > kSurveyed) {
    limits.at_most["micro"] /= 2;
  }
  return survey;
}

// The mesh of `found`; schedule, split, recompute and a micro-batch near its own are open.
SearchRequest schedules_of(const SearchRequest& request, const Ranked& found) {
  SearchRequest schedules = request;
  Constraints& limits = schedules.constraints;
  const auto micro = limits.fixed.find("micro");
  const std::optional<std::int64_t> fixed_micro =
      micro == limits.fixed.end() ? std::nullopt : std::optional(micro->second);
  limits = constraints_of(found.layout, fixed_micro);
  limits.fixed.erase("virtual_stages");
  limits.schedule.reset();
  limits.stage_layers.reset();
  limits.recompute.reset();
  limits.context_exchange.reset();
  if (found.layout.offload != plan::Offload::kNone) limits.offload.reset();  // one or the other
  limits.at_most["micro"] = 2 * kLargestSurveyedMicro;
  return schedules;
}

// pp, tp, cp and the schedule of `found`; how the state is sharded and everything else is open.
SearchRequest rest_of(const SearchRequest& request, const Ranked& found) {
  SearchRequest rest = request;
  Constraints& limits = rest.constraints;
  limits.fixed["pp"] = found.layout.pp;
  limits.fixed["tp"] = found.layout.tp;
  limits.fixed["cp"] = found.layout.cp;
  limits.fixed["virtual_stages"] = found.layout.virtual_stages;
  limits.schedule = found.layout.schedule;
  if (found.layout.offload == plan::Offload::kNone) limits.offload = plan::Offload::kNone;
  return rest;
}

// Where nothing fits the devices.
SearchResult survey_offload(const SearchRequest& request) {
  SearchResult survey;
  for (const plan::Offload offload : {plan::Offload::kOptimizer, plan::Offload::kParameters}) {
    const SearchRequest question = survey_of(request, offload);
    if (const auto found = try_search(question)) take(survey, *found, question.keep);
  }
  return survey;
}

StackSearch search_in_stages(const SearchRequest& request) {
  std::optional<SearchResult> survey = try_search(survey_of(request, plan::Offload::kNone));
  if (!survey || survey->best.empty()) survey = survey_offload(request);
  // A no wants every layout looked at.
  if (!survey || survey->best.empty()) return {.result = search(request)};
  SearchResult all = *survey;
  std::set<std::string> finished;
  const auto finish = [&](const Ranked& ranked) {
    const Axes axes = axes_of(ranked);
    const plan::Layout& layout = ranked.layout;
    const std::string key = std::to_string(axes[0]) + "/" + std::to_string(axes[1]) + "/" + std::to_string(axes[2]) +
                            plan::to_string(layout.schedule) + std::to_string(layout.virtual_stages);
    if (!finished.insert(key).second) return;
    if (auto found = try_search(rest_of(request, ranked))) take(all, *found, request.keep);
  };
  for (const Ranked& ranked : promising(*survey, request.model.experts > 0 ? kRefinedAxesOfExperts : kRefinedAxes)) {
    if (ranked.layout.pp == 1) {
      finish(ranked);
    } else if (auto found = try_search(schedules_of(request, ranked))) {
      take(all, *found, request.keep);
    }
  }
  for (int round = 0; round < 2; ++round) finish(Ranked(all.best.front()));
  drop_own_families(all);
  return {.result = std::move(all), .complete = false};
}

StackSearch search_any(const SearchRequest& request) {
  if (count_candidates(request, kMostCandidates) <= kMostCandidates) return {.result = search(request)};
  return search_in_stages(request);
}

// One Constraints per part of the stack's space.
std::vector<Constraints> parts_of(const SearchRequest& request, Stack stack) {
  std::vector<Constraints> parts;
  const auto add = [&](std::vector<std::pair<std::string, std::int64_t>> fixed) {
    for (const plan::Recompute recompute : {plan::Recompute::kNone, plan::Recompute::kFull}) {
      Constraints part = request.constraints;
      for (const char* axis : {"pp", "tp", "cp", "ep"}) part.fixed[axis] = 1;
      for (const auto& [key, value] : fixed) part.fixed[key] = value;
      part.recompute = recompute;
      parts.push_back(std::move(part));
    }
  };
  add({{"shard", 1}, {"zero", 0}});
  if (stack == Stack::kDeepspeed) {
    add({{"dp", 1}});
    return parts;
  }
  const std::int64_t node = request.cluster.groups.front().devices_per_node;
  for (const std::int64_t zero : {2, 3}) {
    add({{"dp", 1}, {"zero", zero}});
    if (node > 1 && node < request.cluster.devices()) add({{"shard", node}, {"zero", zero}});
  }
  return parts;
}

StackSearch search_parts(const SearchRequest& request, Stack stack) {
  StackSearch all;
  for (const plan::Offload offload : {plan::Offload::kNone, plan::Offload::kOptimizer, plan::Offload::kParameters}) {
    for (const Constraints& part : parts_of(request, stack)) {
      SearchRequest question = request;
      question.constraints = part;
      question.constraints.offload = offload;
      if (auto found = try_search(question)) take(all.result, *found, request.keep);
    }
    if (!all.result.best.empty()) break;
  }
  std::stable_sort(all.result.nearest.begin(), all.result.nearest.end(),
                   [](const Ranked& a, const Ranked& b) { return a.price.memory.total() < b.price.memory.total(); });
  drop_own_families(all.result);
  return all;
}

// Whether anything fits in the memory of the devices, at the leanest.
bool fits(const SearchRequest& request, Stack stack) {
  const std::vector<Constraints> parts =
      stack == Stack::kLockstep ? std::vector{request.constraints} : parts_of(request, stack);
  return std::any_of(parts.begin(), parts.end(), [&](const Constraints& part) {
    SearchRequest lean = request;
    lean.constraints = part;
    Constraints& limits = lean.constraints;
    limits.offload = plan::Offload::kNone;
    if (stack == Stack::kLockstep) {
      limits.fixed["cp"] = 1;
      limits.schedule = plan::Schedule::kOneForwardOneBackward;
      limits.stage_layers = std::vector<std::int64_t>();
      limits.sequence_parallel = true;
      limits.at_most["tp"] = lean.cluster.groups.front().devices_per_node;
    }
    limits.recompute = plan::Recompute::kFull;
    limits.fixed["micro"] = 1;
    const auto found = try_search(lean);
    return found && !found->best.empty();
  });
}

}  // namespace

StackSearch search_for(const SearchRequest& request, Stack stack) {
  return stack == Stack::kLockstep ? search_any(request) : search_parts(request, stack);
}

std::optional<std::int64_t> devices_that_fit(const SearchRequest& request, Stack stack,
                                             const std::function<spec::Cluster(std::int64_t devices)>& grow) {
  const std::int64_t now = request.cluster.devices();
  for (std::int64_t devices = now; devices <= now * kLargestGrowth; devices *= 2) {
    SearchRequest larger = request;
    if (devices > now) larger.cluster = grow(devices);
    // At least a sequence for every data rank: the question is memory.
    larger.global_sequences = devices * std::max<std::int64_t>(1, request.global_sequences / devices);
    if (fits(larger, stack)) return devices;
  }
  return std::nullopt;
}

}  // namespace lockstep::planner
