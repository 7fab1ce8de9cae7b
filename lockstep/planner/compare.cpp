#include "lockstep/planner/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/units.h"
#include "lockstep/planner/explain/fix.h"
#include "lockstep/planner/lost_work.h"
#include "lockstep/planner/resize.h"
#include "lockstep/planner/search/request.h"

namespace lockstep::planner {
namespace {

constexpr double kDefaultTokens = 1e9;
constexpr double kDefaultSamples = 1e6;
constexpr double kSecondsPerDay = 86400;

// The best candidate of one search, or the problem in one line.
std::pair<std::optional<plan::Candidate>, std::string> best_or_problem(const SearchRequest& request) {
  try {
    if (!request.profile.fitted) {
      throw bad_input(
          fmt::format("the profile {} was measured on one machine and prices it alone", request.profile.identity()),
          "compare kinds of GPU, or use a profile of the kind");
    }
    const SearchResult result = search(request);
    if (result.best.empty()) return {std::nullopt, describe_misfit(request, result)};
    const cost::Pricer pricer(request.model, request.cluster, request.profile, pricer_options(request));
    plan::Candidate best = to_candidate(request, pricer, result.best.front());
    if (request.requires_max_lost) {
      if (const auto problem = find_lost_work_problem(request, best)) throw *problem;
    }
    return {std::move(best), ""};
  } catch (const UserError& error) {
    return {std::nullopt, error.what()};
  }
}

double per_second(const plan::Candidate& candidate) {
  const plan::Prediction& prediction = *candidate.prediction;
  return candidate.batch.sequence_length > 0 ? prediction.tokens_per_second.expected
                                             : prediction.samples_per_second.expected;
}

std::string rounded(double days) { return days >= 1000 ? fmt::format("{:.0f}", days) : fmt::format("{:.3g}", days); }

const Option* least(const std::vector<Option>& options, double (*key)(const plan::Candidate&)) {
  const Option* best = nullptr;
  for (const Option& option : options) {
    if (!option.best || !option.best->cost || option.meets_deadline == false) continue;
    if (best == nullptr || key(*option.best) < key(*best->best)) best = &option;
  }
  return best;
}

std::string figures(const Option& option) {
  const plan::Prediction& prediction = *option.best->prediction;
  const double days = option.best->cost->days, expected = prediction.step_seconds.expected;
  return fmt::format("{} ({} days, {} to {}; {:.0f} USD{})", option.cluster.name, rounded(days),
                     rounded(days * prediction.step_seconds.low / expected),
                     rounded(days * prediction.step_seconds.high / expected), option.best->cost->usd,
                     option.runs == 0 ? "; no published run behind it" : "");
}

std::string verdict_of(const Comparison& comparison) {
  const auto days = [](const plan::Candidate& candidate) { return candidate.cost->days; };
  const auto dollars = [](const plan::Candidate& candidate) { return candidate.cost->usd; };
  const Option* fastest = least(comparison.options, days);
  const Option* cheapest = least(comparison.options, dollars);
  const std::string limit = fmt::format("{:.4g} days", comparison.deadline_seconds / kSecondsPerDay);
  if (cheapest == nullptr) {
    return comparison.deadline_seconds > 0 ? "none ends within " + limit : "the model fits none of them";
  }
  const std::string scope = comparison.deadline_seconds > 0 ? " within " + limit : "";
  if (fastest == cheapest) return fmt::format("{} is both cheapest and fastest{}", figures(*cheapest), scope);
  return fmt::format("cheapest{}: {}; fastest: {}, for {:.0f}% more money", scope, figures(*cheapest),
                     figures(*fastest), 100 * (fastest->best->cost->usd / cheapest->best->cost->usd - 1));
}

double per_second_per_device(const ScalingPoint& point) {
  return per_second(*point.best) / static_cast<double>(point.devices);
}

// The first size that fits without help from the host is the measure.
void rate_efficiency(Scaling& scaling) {
  const auto is_measure = [](const ScalingPoint& point) {
    return point.best && point.best->layout.offload == plan::Offload::kNone;
  };
  auto measure = std::find_if(scaling.points.begin(), scaling.points.end(), is_measure);
  if (measure == scaling.points.end()) {
    measure = std::find_if(scaling.points.begin(), scaling.points.end(),
                           [](const ScalingPoint& point) { return point.best.has_value(); });
  }
  if (measure == scaling.points.end()) return;
  const double reference = per_second_per_device(*measure);
  for (ScalingPoint& point : scaling.points) {
    if (!point.best) continue;
    point.efficiency = per_second_per_device(point) / reference;
    const bool below = point.efficiency < kGoodEfficiency && point.devices > measure->devices;
    if (below && !scaling.falls_below) scaling.falls_below = point.devices;
  }
}

nlohmann::json candidate_json(const plan::Candidate& candidate, std::int64_t devices) {
  nlohmann::json json = {{"layout", plan::to_string(candidate.layout)},
                         {"recompute", plan::to_string(candidate.layout.recompute)},
                         {"precision", spec::to_string(candidate.layout.precision)},
                         {"devices", candidate.layout.world()},
                         {"idle_devices", devices - candidate.layout.world()},
                         {"micro", candidate.batch.micro},
                         {"accumulation", candidate.batch.accumulation},
                         {"global_sequences", candidate.batch.global_sequences},
                         {"sequence_length", candidate.batch.sequence_length},
                         {"memory_gib", candidate.memory.total() / kGiB},
                         {"capacity_gib", candidate.memory.capacity / kGiB}};
  const plan::Prediction& prediction = *candidate.prediction;
  json["tokens_per_second"] = prediction.tokens_per_second.expected;
  json["samples_per_second"] = prediction.samples_per_second.expected;
  json["per_second_low"] =
      candidate.batch.sequence_length > 0 ? prediction.tokens_per_second.low : prediction.samples_per_second.low;
  json["per_second_high"] =
      candidate.batch.sequence_length > 0 ? prediction.tokens_per_second.high : prediction.samples_per_second.high;
  json["step_seconds"] = prediction.step_seconds.expected;
  json["mfu"] = prediction.mfu.expected;
  json["goodput"] = candidate.checkpoint ? nlohmann::json(candidate.checkpoint->goodput) : nlohmann::json();
  json["days"] = candidate.cost ? nlohmann::json(candidate.cost->days) : nlohmann::json();
  json["gpu_hours"] = candidate.cost ? nlohmann::json(candidate.cost->gpu_hours) : nlohmann::json();
  json["usd"] = candidate.cost ? nlohmann::json(candidate.cost->usd) : nlohmann::json();
  return json;
}

}  // namespace

Comparison compare(std::vector<SearchRequest> requests) {
  LOCKSTEP_ASSERT(!requests.empty(), "a comparison of nothing");
  Comparison comparison;
  comparison.model = requests.front().model.name;
  comparison.tokens_given = requests.front().tokens > 0;
  comparison.deadline_seconds = requests.front().deadline_seconds;
  for (SearchRequest& asked : requests) {
    if (asked.tokens <= 0) asked.tokens = asked.model.is_language_model() ? kDefaultTokens : kDefaultSamples;
    const SearchRequest request = complete(std::move(asked));
    comparison.tokens = request.tokens;
    Option option{.cluster = request.cluster};
    if (request.profile.fitted) option.runs = request.profile.fitted->runs;
    std::tie(option.best, option.problem) = best_or_problem(request);
    if (comparison.deadline_seconds > 0) {
      option.meets_deadline =
          option.best && option.best->cost && option.best->cost->days * kSecondsPerDay <= comparison.deadline_seconds;
    }
    comparison.options.push_back(std::move(option));
  }
  comparison.verdict = verdict_of(comparison);
  return comparison;
}

Scaling scale(const SearchRequest& asked, std::vector<std::int64_t> devices, bool weak) {
  LOCKSTEP_ASSERT(!devices.empty(), "a scaling over nothing");
  std::sort(devices.begin(), devices.end());
  devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
  const SearchRequest base = complete(asked);
  Scaling scaling{.model = base.model.name, .cluster = base.cluster.name, .weak = weak};
  for (const std::int64_t count : devices) {
    SearchRequest request = base;
    request.cluster = resized(base.cluster, count);
    if (weak) request.global_sequences = base.global_sequences * count / devices.front();
    ScalingPoint point{.devices = count, .global_sequences = request.global_sequences};
    std::tie(point.best, point.problem) = best_or_problem(request);
    scaling.points.push_back(std::move(point));
  }
  rate_efficiency(scaling);
  return scaling;
}

nlohmann::json to_json(const Comparison& comparison) {
  nlohmann::json options = nlohmann::json::array();
  for (const Option& option : comparison.options) {
    options.push_back(
        {{"cluster", option.cluster.name},
         {"devices", option.cluster.devices()},
         {"fits", option.best.has_value()},
         {"problem", option.problem},
         {"published_runs", option.runs},
         {"meets_deadline", option.meets_deadline ? nlohmann::json(*option.meets_deadline) : nlohmann::json()},
         {"best", option.best ? candidate_json(*option.best, option.cluster.devices()) : nlohmann::json()}});
  }
  return {{"schema", "lockstep.comparison/1"},
          {"model", comparison.model},
          {"tokens", comparison.tokens},
          {"tokens_given", comparison.tokens_given},
          {"deadline_seconds", comparison.deadline_seconds},
          {"options", std::move(options)},
          {"verdict", comparison.verdict}};
}

nlohmann::json to_json(const Scaling& scaling) {
  nlohmann::json points = nlohmann::json::array();
  for (const ScalingPoint& point : scaling.points) {
    points.push_back({{"devices", point.devices},
                      {"global_sequences", point.global_sequences},
                      {"fits", point.best.has_value()},
                      {"problem", point.problem},
                      {"efficiency", point.best ? nlohmann::json(point.efficiency) : nlohmann::json()},
                      {"best", point.best ? candidate_json(*point.best, point.devices) : nlohmann::json()}});
  }
  return {{"schema", "lockstep.scaling/1"},
          {"model", scaling.model},
          {"cluster", scaling.cluster},
          {"weak", scaling.weak},
          {"good_efficiency", kGoodEfficiency},
          {"falls_below", scaling.falls_below ? nlohmann::json(*scaling.falls_below) : nlohmann::json()},
          {"points", std::move(points)}};
}

}  // namespace lockstep::planner
