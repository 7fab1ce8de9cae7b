#include "lockstep/cost/profile/stalls.h"

#include <algorithm>
#include <cmath>

namespace lockstep::cost {
namespace {

// Shares of the memory: below the first nobody was hit for it, above the second most were.
constexpr double kFreeFill = 0.8, kFullFill = 0.95;

double sum_of_products(const StallTerms& a, const StallTerms& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

std::int64_t nodes_of(std::int64_t ranks, std::int64_t devices_per_node) {
  return std::max<std::int64_t>(1, (ranks + devices_per_node - 1) / devices_per_node);
}

}  // namespace

Stalls certain_stall() {
  Stalls stalls{.runs = 1, .stalled = 1};
  stalls.odds[0] = 50;
  return stalls;
}

StallTerms stall_terms(const plan::Layout& layout, std::int64_t devices_per_node, double fill) {
  const double nodes = std::log2(static_cast<double>(nodes_of(layout.world(), devices_per_node)));
  const bool pipeline = layout.pp > 1;
  const double tensor_nodes = pipeline ? std::log2(static_cast<double>(nodes_of(layout.tp, devices_per_node))) : 0.0;
  const double whole = pipeline && layout.zero == 0 && layout.data_ranks() > 1 ? 1.0 : 0.0;
  const double ranks = std::log2(static_cast<double>(layout.data_ranks()));
  return {1.0,
          nodes * nodes * nodes / 6,
          tensor_nodes,
          whole,
          whole * ranks,
          whole * ranks * ranks,
          std::log2(static_cast<double>(layout.pp)),
          std::max(0.0, fill - kFreeFill) * 10};
}

std::int64_t step_slots(const plan::Layout& layout, std::int64_t accumulation) { return accumulation + layout.pp - 1; }

Stall stall_of(const Stalls& stalls, const plan::Layout& layout, std::int64_t accumulation,
               std::int64_t devices_per_node, double fill) {
  if (stalls.runs == 0) return {};
  const StallTerms terms = stall_terms(layout, devices_per_node, fill);
  const double slots = static_cast<double>(step_slots(layout, accumulation));
  return {.probability = 1 / (1 + std::exp(-sum_of_products(stalls.odds, terms))),
          .seconds = slots * std::exp(sum_of_products(stalls.seconds, terms))};
}

double expected_stall_seconds(const Stall& stall, double ordinary_seconds) {
  if (stall.probability <= 0 || ordinary_seconds <= 0) return 0;
  const double rate =
      (1 - stall.probability) / ordinary_seconds + stall.probability / (ordinary_seconds + stall.seconds);
  return 1 / rate - ordinary_seconds;
}

std::string stall_mechanism(const plan::Layout& layout, std::int64_t devices_per_node, double fill) {
  if (fill > kFullFill) return "memory so full that the allocator frees and tries again";
  if (layout.tp > devices_per_node) return "tensor parallel across nodes";
  if (layout.pp > 1) return "a pipeline whose hosts wait for each other";
  return "many nodes that wait for each other";
}

}  // namespace lockstep::cost
