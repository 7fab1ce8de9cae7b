// Communication that compute does not hide: in pieces too small, over groups in the wrong place, or simply too much.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "lockstep/base/units.h"
#include "lockstep/diagnose/detectors/detectors.h"
#include "lockstep/diagnose/statistics.h"

namespace lockstep::diagnose {
namespace {

constexpr double kSmallBytes = 256.0 * 1024.0;
constexpr double kManyPerStep = 8.0;
constexpr double kUsualBucketMib = 25.0;
// Without a prediction nobody knows what this layout must take; more than this is worth a better one.
constexpr double kAcceptedExposedShare = 0.25;
constexpr double kBeyondPrediction = 1.5;

struct Reductions {
  double per_step = 0.0, bytes_per_step = 0.0;
  double usual_bytes = 0.0;    // of one
  double usual_seconds = 0.0;  // of one, everybody there
};

// Sites of data-parallel reductions (parallel/); a name without a site is of a program that has none.
bool is_of_gradients(const std::string& name) {
  if (!name.starts_with("all_reduce") && !name.starts_with("reduce_scatter")) return false;
  const std::size_t site = name.find(" (");
  return site == std::string::npos || name.find("(dp:", site) != std::string::npos ||
         name.find("(zero:", site) != std::string::npos;
}

// Reductions of gradients: what buckets are about.
Reductions gradient_reductions(const RunEvidence& evidence) {
  std::set<std::int64_t> steps;
  std::vector<double> bytes, seconds;
  for (const Exchange& exchange : evidence.exchanges) {
    steps.insert(exchange.step);
    if (!is_of_gradients(exchange.name)) continue;
    if (exchange.bytes < 1024) continue;  // the loss, a norm, requests to stop
    bytes.push_back(static_cast<double>(exchange.bytes));
    seconds.push_back(exchange.transfer_seconds());
  }
  Reductions found;
  if (steps.empty() || bytes.empty()) return found;
  const auto count = static_cast<double>(steps.size());
  found.per_step = static_cast<double>(bytes.size()) / count;
  found.bytes_per_step = mean(bytes) * found.per_step;
  found.usual_bytes = median(bytes);
  found.usual_seconds = median(seconds);
  return found;
}

// Whether the ranks of `same` (equal in every axis but the one that is looked at) sit on more than one node.
template <class SameGroup>
bool is_spread(const RunEvidence& evidence, SameGroup same) {
  for (int a = 0; a < evidence.world(); ++a) {
    for (int b = a + 1; b < evidence.world(); ++b) {
      const Place &first = evidence.places[static_cast<std::size_t>(a)],
                  &second = evidence.places[static_cast<std::size_t>(b)];
      if (same(first, second) && first.node != second.node) return true;
    }
  }
  return false;
}

std::size_t ranks_on_smallest_node(const RunEvidence& evidence) {
  std::map<int, std::size_t> counts;
  for (const Place& place : evidence.places) ++counts[place.node];
  std::size_t least = evidence.places.size();
  for (const auto& [node, count] : counts) least = std::min(least, count);
  return counts.size() > 1 ? least : 0;
}

// What would exchange less, by what the layout has.
std::string less_exchange(const RunEvidence& evidence) {
  const std::string other = "lockstep plan with this model and cluster: ";
  if (!evidence.run) return other + "a layout that exchanges less";
  const plan::Layout& layout = evidence.run->layout;
  if (layout.data_ranks() > 1) {
    return train_with(evidence, fmt::format("batch.accumulation={}", 2 * evidence.run->batch.accumulation)) +
           ": gradients are exchanged half as often per sample; or communication.compression=bf16";
  }
  if (layout.tp * layout.cp > 1) return other + "a layout with smaller tp or cp";
  return other + "fewer stages, or larger micro-batches";
}

}  // namespace

Findings find_small_messages(const RunEvidence& evidence) {
  const Reductions found = gradient_reductions(evidence);
  if (found.per_step < kManyPerStep || found.usual_bytes > kSmallBytes) return {};
  const double needed = std::ceil(found.bytes_per_step / (kUsualBucketMib * 1024.0 * 1024.0));
  if (found.per_step < 2.0 * needed) return {};
  // All but `needed` of them save their fixed part, which of a small message is nearly all.
  const double saved = std::min((found.per_step - needed) * found.usual_seconds, transfer_seconds(evidence));
  return {make_finding(
      Cause::kSmallMessages, 0.85, evidence.share(saved), {},
      fmt::format("gradients travel in {:.0f} pieces a step of {} each, {} per piece; {:.0f} would do", found.per_step,
                  format_bytes(found.usual_bytes), format_seconds(found.usual_seconds), needed),
      train_with(evidence, "communication.bucket=25MiB"))};
}

Findings find_wrong_placement(const RunEvidence& evidence) {
  if (!evidence.run || !evidence.nodes_known) return {};
  const plan::Layout& layout = evidence.run->layout;
  const auto inner = static_cast<std::size_t>(layout.tp * layout.cp);
  if (inner < 2 || inner > ranks_on_smallest_node(evidence)) return {};
  const auto inner_group = [](const Place& a, const Place& b) {
    return a.pp == b.pp && a.dp == b.dp && a.shard == b.shard;
  };
  if (!is_spread(evidence, inner_group)) return {};
  const double moved = std::max(transfer_seconds(evidence), 0.0);
  return {make_finding(
      Cause::kWrongPlacement, 0.9, evidence.share(moved), {},
      fmt::format(
          "tensor and context groups of {} ranks exchange in every layer and are spread over nodes though a node has "
          "room for {}; transfers take {} of a step",
          inner, ranks_on_smallest_node(evidence), format_seconds(moved)),
      "start ranks node by node, so that neighbours share a node (mpirun --map-by slot, srun --distribution=block; not "
      "by node "
      "or cyclic)")};
}

Findings find_exposed_communication(const RunEvidence& evidence) {
  if (evidence.world() < 2 || !evidence.has(telemetry::metric::kWaitSeconds)) return {};
  const double moved = transfer_seconds(evidence);
  const double predicted = predicted_transfer_seconds(evidence);
  const double accepted =
      predicted > 0.0 ? kBeyondPrediction * predicted : kAcceptedExposedShare * evidence.step_seconds;
  if (moved <= accepted) return {};
  std::string text = fmt::format("ranks are blocked on transfers {} of a {} step, waiting for peers not counted",
                                 format_seconds(moved), format_seconds(evidence.step_seconds));
  if (predicted > 0.0) text += fmt::format("; predicted were {}", format_seconds(predicted));
  const std::string fix = less_exchange(evidence);
  return {make_finding(Cause::kExposedCommunication, predicted > 0.0 ? 0.8 : 0.65,
                       evidence.share(moved - std::min(predicted, moved)), {}, text, fix)};
}

}  // namespace lockstep::diagnose
