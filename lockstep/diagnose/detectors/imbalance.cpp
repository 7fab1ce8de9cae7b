// Ranks that have more to do than others: more targets in their samples, or the experts that all tokens want.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lockstep/base/units.h"
#include "lockstep/diagnose/detectors/detectors.h"
#include "lockstep/diagnose/statistics.h"

namespace lockstep::diagnose {
namespace {

namespace metric = telemetry::metric;

constexpr double kLeastUneven = 1.1;       // most targets of a rank over the mean of the ranks
constexpr double kLeastCorrelation = 0.5;  // between targets and time, within steps
constexpr double kUnevenExperts = 1.5;     // busiest expert over the mean

struct Uneven {
  double time = 0.0;   // seconds that the longest rank of a step computes beyond the mean; median over steps
  double ratio = 1.0;  // largest over mean of the metric; median over steps
  double correlation = 0.0;
  std::vector<int> ranks;  // that had the most in most steps
};

double correlation_of(const std::vector<std::pair<double, double>>& pairs) {
  double xx = 0.0, yy = 0.0, xy = 0.0;
  for (const auto& [x, y] : pairs) {
    xx += x * x;
    yy += y * y;
    xy += x * y;
  }
  return xx > 0.0 && yy > 0.0 ? xy / std::sqrt(xx * yy) : 0.0;
}

// `metric` and time of computing of all ranks, step by step; deviations from the mean of each step are compared.
Uneven unevenness(const RunEvidence& evidence, std::string_view name) {
  Uneven uneven;
  std::vector<double> times, ratios;
  std::vector<std::pair<double, double>> deviations;
  std::vector<int> most(static_cast<std::size_t>(evidence.world()), 0);
  for (std::size_t i = 0; i < evidence.steps.size(); ++i) {
    std::vector<double> amounts, seconds;
    for (int rank = 0; rank < evidence.world(); ++rank) {
      const std::vector<double>& amount = evidence.of(name, rank);
      const std::vector<double>& time = evidence.of(metric::kComputeSeconds, rank);
      if (i >= amount.size() || i >= time.size() || !std::isfinite(amount[i]) || !std::isfinite(time[i])) break;
      amounts.push_back(amount[i]);
      seconds.push_back(time[i]);
    }
    if (static_cast<int>(amounts.size()) != evidence.world()) continue;
    const double mean_amount = mean(amounts), mean_seconds = mean(seconds);
    for (std::size_t r = 0; r < amounts.size(); ++r) {
      deviations.emplace_back(amounts[r] - mean_amount, seconds[r] - mean_seconds);
    }
    const auto largest = std::max_element(amounts.begin(), amounts.end());
    ++most[static_cast<std::size_t>(largest - amounts.begin())];
    if (mean_amount > 0.0) ratios.push_back(*largest / mean_amount);
    times.push_back(*std::max_element(seconds.begin(), seconds.end()) - mean_seconds);
  }
  uneven.time = median(times);
  if (!ratios.empty()) uneven.ratio = median(ratios);
  uneven.correlation = correlation_of(deviations);
  for (std::size_t rank = 0; rank < most.size(); ++rank) {
    if (2 * static_cast<std::size_t>(most[rank]) > times.size()) uneven.ranks.push_back(static_cast<int>(rank));
  }
  return uneven;
}

// Samples of unlike length that are not packed: what is computed beyond the short ones is padding. The long ones tell
// what a sequence could hold.
Findings find_padding(const RunEvidence& evidence) {
  if (!evidence.job || evidence.job->data.kind != spec::DataKind::kInstruction) return {};
  if (evidence.job->data.packing != spec::Packing::kNone) return {};
  std::vector<double> targets;
  for (int rank = 0; rank < evidence.world(); ++rank) {
    const std::vector<double>& of_rank = evidence.of(metric::kTargets, rank);
    std::copy_if(of_rank.begin(), of_rank.end(), std::back_inserter(targets),
                 [](double t) { return std::isfinite(t); });
  }
  if (targets.size() < 10) return {};
  std::sort(targets.begin(), targets.end());
  const double most = targets[targets.size() * 95 / 100], average = mean(targets);
  if (most < kLeastUneven * average) return {};
  const double compute = evidence.usual(metric::kComputeSeconds);
  return {make_finding(
      Cause::kDataImbalance, 0.75, evidence.share(compute) * (1.0 - average / most), {},
      fmt::format(
          "a rank's samples hold {:.0f} targets in a step on average and {:.0f} in a full one, and every step computes "
          "sequences of {} whatever they hold",
          average, most, evidence.run->batch.sequence_length),
      train_with(evidence, "data.packing=true") + ": several samples in a sequence instead of padding")};
}

struct ExpertWaiting {
  double seconds = 0.0;    // of a usual step, mean of the ranks
  std::vector<int> ranks;  // that they wait for
};

ExpertWaiting longest_computing(const RunEvidence& evidence) {
  std::vector<double> computes;
  computes.reserve(static_cast<std::size_t>(evidence.world()));
  for (int rank = 0; rank < evidence.world(); ++rank) computes.push_back(evidence.usual(metric::kComputeSeconds, rank));
  ExpertWaiting waiting{*std::max_element(computes.begin(), computes.end()) - mean(computes), {}};
  for (std::size_t rank = 0; rank < computes.size(); ++rank) {
    if (computes[rank] - mean(computes) > 0.5 * waiting.seconds) waiting.ranks.push_back(static_cast<int>(rank));
  }
  return waiting;
}

// From the exchanges of tokens: the busiest expert of one layer may be on another rank than that of the next, so that
// all ranks compute equally long in a step and still wait for each other in every layer. Without spans only the
// difference over a whole step is known.
ExpertWaiting waiting_for_experts(const RunEvidence& evidence) {
  std::map<std::int64_t, double> waited;  // by step, mean of the members
  std::map<int, double> late;
  for (const Exchange& exchange : evidence.exchanges) {
    if (!exchange.group.starts_with("ep")) continue;
    double sum = 0.0;
    for (const Member& member : exchange.members) sum += exchange.last_begin() - member.begin;
    waited[exchange.step] += sum / static_cast<double>(exchange.members.size());
    late[exchange.last_rank()] += exchange.lateness();
  }
  if (waited.empty()) return longest_computing(evidence);
  std::vector<double> steps;
  steps.reserve(waited.size());
  for (const auto& [step, seconds] : waited) steps.push_back(seconds);
  ExpertWaiting waiting{median(steps), {}};
  const auto latest = std::max_element(late.begin(), late.end(), [](auto& a, auto& b) { return a.second < b.second; });
  for (const auto& [rank, seconds] : late) {
    if (seconds > 0.5 * latest->second) waiting.ranks.push_back(rank);
  }
  return waiting;
}

}  // namespace

Findings find_data_imbalance(const RunEvidence& evidence) {
  if (Findings padding = find_padding(evidence); !padding.empty()) return padding;
  if (evidence.world() < 2 || !evidence.has(metric::kTargets)) return {};
  const Uneven uneven = unevenness(evidence, metric::kTargets);
  if (uneven.ratio < kLeastUneven || uneven.correlation < kLeastCorrelation) return {};
  return {make_finding(
      Cause::kDataImbalance, 0.85, evidence.share(uneven.time), uneven.ranks,
      fmt::format(
          "in a usual step one rank has {:.0f}% more targets than the mean and computes {} longer; time follows "
          "targets (correlation {:.2f})",
          100.0 * (uneven.ratio - 1.0), format_seconds(uneven.time), uneven.correlation),
      train_with(evidence, "data.packing=true") +
          ": sequences of one length; or sort samples of like length into a step")};
}

Findings find_expert_imbalance(const RunEvidence& evidence) {
  if (evidence.world() < 2 || !evidence.has(metric::kExpertImbalance)) return {};
  const double busiest = evidence.usual(metric::kExpertImbalance);
  if (busiest < kUnevenExperts) return {};
  // Where experts are not spread over ranks, every rank has all of them and none waits.
  if (evidence.run && evidence.run->layout.ep < 2) return {};
  const ExpertWaiting waiting = waiting_for_experts(evidence);
  if (waiting.ranks.empty()) return {};
  return {make_finding(
      Cause::kExpertImbalance, 0.85, evidence.share(waiting.seconds), waiting.ranks,
      fmt::format("the busiest expert gets {:.1f} times the mean; a rank waits {} of a step for {}", busiest,
                  format_seconds(waiting.seconds), named_ranks(waiting.ranks)),
      "raise the weight of the load-balancing loss (model.auxiliary_loss), or lower layout.ep so that a rank holds "
      "more "
      "experts")};
}

}  // namespace lockstep::diagnose
