#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/clock.h"
#include "lockstep/base/text.h"
#include "lockstep/report/json_numbers.h"
#include "lockstep/report/median.h"
#include "lockstep/report/validation/validation.h"

namespace lockstep::report {
namespace {

using nlohmann::json;
using planner::StepPhase;

constexpr StepPhase kPhases[] = {StepPhase::kCompute, StepPhase::kComm, StepPhase::kOptimizer,
                                 StepPhase::kHost,    StepPhase::kData, StepPhase::kCheckpoint};

bool is_predicted(StepPhase phase) { return phase != StepPhase::kData && phase != StepPhase::kCheckpoint; }

double percent(double measured, double predicted) { return 100 * (measured / predicted - 1); }

json interval(const plan::Interval& value) {
  return {{"low", value.low}, {"expected", value.expected}, {"high", value.high}};
}

// What a step works through: tokens, of models without tokens samples.
double work_of(const plan::BatchPlan& batch) {
  return static_cast<double>(batch.global_sequences) *
         static_cast<double>(std::max<std::int64_t>(1, batch.sequence_length));
}

json step_and_rate(const plan::Interval& seconds, double work) {
  return {{"step_seconds", interval(seconds)},
          {"per_second", interval({work / seconds.high, work / seconds.expected, work / seconds.low})}};
}

json phases_json(const planner::CheckedStep& step) {
  json rows = json::array();
  const double total = step.predicted.total();
  for (const StepPhase phase : kPhases) {
    const double predicted = step.predicted[phase], measured = step.measured[phase];
    rows.push_back({{"phase", planner::to_string(phase)},
                    {"predicted_seconds", is_predicted(phase) ? json(predicted) : json()},
                    {"measured_seconds", measured},
                    {"residual_seconds", measured - predicted},
                    {"percent_of_step", 100 * (measured - predicted) / total}});
  }
  return rows;
}

json run_json(const ProxyRun& run, double work) {
  const double seconds = run.measured.total(), predicted = run.predicted.prediction->step_seconds.expected;
  return {{"run", run.run},
          {"seed", run.seed},
          {"step_seconds", seconds},
          {"per_second", work / seconds},
          {"memory_bytes", positive_or_null(run.measured_bytes)},
          {"predicted_step_seconds", predicted},
          {"error_percent", percent(predicted, seconds)},
          {"load", run.load},
          {"share", run.share},
          {"wall_seconds", seconds / run.share}};
}

json model_json(const spec::Model& model) {
  return {{"name", model.name},
          {"parameters", spec::parameter_count(model)},
          {"layers", model.layers},
          {"hidden", model.hidden},
          {"heads", model.heads},
          {"kv_heads", model.kv_heads},
          {"ffn_hidden", model.ffn_hidden},
          {"vocab", model.vocab}};
}

json differences_json(const std::vector<planner::Difference>& differences) {
  json rows = json::array();
  for (const planner::Difference& row : differences) {
    rows.push_back({{"what", row.what}, {"target", row.target}, {"proxy", row.proxy}, {"why", row.why}});
  }
  return rows;
}

json proxy_json(const CheckedProxy& checked, std::size_t number) {
  const ProxyRun& middle = checked.middle();
  const plan::BatchPlan& batch = middle.predicted.batch;
  const double work = work_of(batch), seconds = middle.measured.total();
  const plan::Interval& predicted = middle.predicted.prediction->step_seconds;
  json predicted_json = step_and_rate(predicted, work), runs = json::array(), checks = json::array();
  predicted_json["memory_bytes"] = middle.predicted_bytes;
  for (const ProxyRun& run : checked.runs) runs.push_back(run_json(run, work));
  for (const planner::Parallelism kind : checked.proxy.checks) checks.push_back(planner::to_string(kind));
  const bool has_memory = middle.measured_bytes > 0;
  return {{"name", fmt::format("proxy-{}", number)},
          {"is_job", checked.proxy.is_job},
          {"layout", plan::to_string(checked.proxy.layout)},
          {"checks", std::move(checks)},
          {"model", model_json(checked.proxy.job.model)},
          {"batch",
           {{"micro", batch.micro},
            {"accumulation", batch.accumulation},
            {"global_sequences", batch.global_sequences},
            {"sequence_length", batch.sequence_length}}},
          {"precision", spec::to_string(checked.proxy.job.precision)},
          {"differences", differences_json(checked.proxy.differences)},
          {"predicted", std::move(predicted_json)},
          {"measured",
           {{"step_seconds", seconds},
            {"per_second", work / seconds},
            {"memory_bytes", positive_or_null(middle.measured_bytes)}}},
          {"runs", std::move(runs)},
          {"error_percent",
           {{"per_second", percent(predicted.expected, seconds)},
            {"memory_bytes", has_memory ? json(percent(middle.measured_bytes, middle.predicted_bytes)) : json()}}},
          {"inside", predicted.low <= seconds && seconds <= predicted.high},
          {"phases", phases_json(middle.step())}};
}

std::vector<planner::CheckedStep> steps_of(const Validation& validation) {
  std::vector<planner::CheckedStep> steps;
  steps.reserve(validation.proxies.size());
  for (const CheckedProxy& proxy : validation.proxies) steps.push_back(proxy.middle().step());
  return steps;
}

std::vector<std::string> what_carries(const Validation& validation, const planner::CarriedOver& carried) {
  const std::string kinds = validation.target.cluster.groups.front().device.kind;
  std::vector<std::string> checks;
  for (const CheckedProxy& proxy : validation.proxies) {
    for (const planner::Parallelism kind : proxy.proxy.checks) {
      const std::string name = planner::to_string(kind);
      if (std::find(checks.begin(), checks.end(), name) == checks.end()) checks.push_back(name);
    }
  }
  std::vector<std::string> sentences;
  sentences.push_back(fmt::format(
      "How a step adds up from what was measured{}: the interval grows by a half-width of "
      "{:.1f}%, as an independent error.",
      checks.empty() ? "" : fmt::format(", with {}", join(checks, ", ")), 100 * std::expm1(carried.widened_by)));
  if (validation.same_device) {
    sentences.emplace_back(
        "How far each phase was off, because the devices are of the kind that was measured: the "
        "expected value moves with the phases.");
  } else {
    sentences.push_back(fmt::format("The expected value stays: proxies on {} say nothing about the speed of {}.",
                                    validation.machine.kind, kinds));
  }
  return sentences;
}

std::vector<std::string> what_does_not_carry(const Validation& validation) {
  std::vector<std::string> sentences;
  const spec::Cluster& cluster = validation.target.cluster;
  const plan::Layout& layout = validation.target.best.layout;
  std::int64_t nodes = 0;
  for (const spec::NodeGroup& group : cluster.groups) nodes += group.nodes;
  if (!validation.same_device) {
    sentences.push_back(fmt::format("Peak, memory and links of {}: the profile that priced the plan answers for them.",
                                    cluster.groups.front().device.kind));
  }
  if (nodes > 1) {
    sentences.push_back(fmt::format("The network between {} nodes, and their stragglers: proxies ran on one.", nodes));
  }
  if (layout.world() > validation.machine.ranks) {
    sentences.push_back(
        fmt::format("Collectives over up to {} ranks: proxies had {}.", layout.world(), validation.machine.ranks));
  }
  for (const planner::Unchecked& open : validation.unchecked) {
    sentences.push_back(fmt::format("{}: {}.", open.what, open.why));
  }
  sentences.emplace_back("The loader, for the data is generated; checkpoints, evaluation and failures.");
  return sentences;
}

json target_json(const Validation& validation) {
  const plan::Candidate& best = validation.target.best;
  const plan::Interval& before = best.prediction->step_seconds;
  const planner::CarriedOver carried =
      planner::carry_over(before, planner::parts_of(*best.breakdown), steps_of(validation), validation.same_device);
  const double work = work_of(best.batch);
  json phases = json::array();
  for (const planner::PhaseError& row : carried.phases) {
    if (!is_predicted(row.phase)) continue;
    phases.push_back({{"phase", planner::to_string(row.phase)},
                      {"seconds", row.seconds},
                      {"share", row.share},
                      {"checks", row.checks},
                      {"log_error", row.log_error ? json(*row.log_error) : json()},
                      {"factor", row.factor}});
  }
  return {{"layout", plan::to_string(best.layout)},
          {"profile", validation.target.profile},
          {"before", step_and_rate(before, work)},
          {"after", step_and_rate(carried.step_seconds, work)},
          {"phases", std::move(phases)},
          {"widened_by", carried.widened_by},
          {"carries", what_carries(validation, carried)},
          {"does_not_carry", what_does_not_carry(validation)}};
}

json summary_json(const json& proxies) {
  std::vector<double> rates, memory;
  for (const json& proxy : proxies) {
    const json& error = proxy.at("error_percent");
    rates.push_back(std::abs(error.at("per_second").get<double>()));
    if (error.at("memory_bytes").is_number()) memory.push_back(std::abs(error.at("memory_bytes").get<double>()));
  }
  return {{"median_error_percent", median(rates)},
          {"worst_error_percent", *std::max_element(rates.begin(), rates.end())},
          {"median_memory_error_percent", memory.empty() ? json() : json(median(memory))}};
}

}  // namespace

planner::CheckedStep ProxyRun::step() const { return {planner::parts_of(*predicted.breakdown), measured}; }

const ProxyRun& CheckedProxy::middle() const {
  std::vector<double> ratios;
  ratios.reserve(runs.size());
  for (const ProxyRun& run : runs) ratios.push_back(run.log_ratio());
  return runs[planner::middle_run(ratios)];
}

nlohmann::json to_json(const Validation& validation) {
  json proxies = json::array(), unchecked = json::array();
  for (const CheckedProxy& proxy : validation.proxies) proxies.push_back(proxy_json(proxy, proxies.size() + 1));
  for (const planner::Unchecked& open : validation.unchecked) {
    unchecked.push_back({{"what", open.what}, {"why", open.why}});
  }
  const ValidationMachine& machine = validation.machine;
  json summary = summary_json(proxies);
  return {{"schema", "lockstep.validation/1"},
          {"job", validation.job.name},
          {"model", validation.target.model.name},
          {"cluster", validation.target.cluster.name},
          {"date", utc_timestamp(validation.made_at)},
          {"unit", validation.target.best.batch.sequence_length > 0 ? "tokens" : "samples"},
          {"machine",
           {{"kind", machine.kind},
            {"hardware", machine.hardware},
            {"software", machine.software},
            {"ranks", machine.ranks},
            {"threads", machine.threads},
            {"cores", machine.cores},
            {"backend", machine.backend}}},
          {"profile", validation.profile},
          {"same_device", validation.same_device},
          {"proxies", std::move(proxies)},
          {"unchecked", std::move(unchecked)},
          {"summary", std::move(summary)},
          {"target", target_json(validation)}};
}

}  // namespace lockstep::report
