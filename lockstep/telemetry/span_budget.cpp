#include "lockstep/telemetry/span_budget.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace lockstep::telemetry {
namespace {

constexpr std::int64_t kRunBytes = std::int64_t{64} << 20;
constexpr std::int64_t kLeastBytes = std::int64_t{512} << 10, kMostBytes = std::int64_t{16} << 20;
constexpr std::int64_t kFirstSteps = 10;

// How long a step is worth keeping: the zeros at the end of its number.
int roundness(std::int64_t step) {
  if (step <= kFirstSteps) return std::numeric_limits<int>::max();
  int zeros = 0;
  for (; step % 10 == 0; step /= 10) ++zeros;
  return zeros;
}

}  // namespace

std::int64_t span_budget_bytes(int world) {
  return std::clamp(kRunBytes / std::max(1, world), kLeastBytes, kMostBytes);
}

void SpanBudget::add(std::int64_t step, std::int64_t bytes) {
  std::int64_t& kept = steps_[step];
  total_ += bytes - std::exchange(kept, bytes);
}

std::vector<std::int64_t> SpanBudget::take_surplus(std::int64_t budget_bytes) {
  if (total_ <= budget_bytes) return {};
  auto newest = steps_.end();
  for (std::int64_t spared = 0; newest != steps_.begin() && spared < budget_bytes / 2;) spared += (--newest)->second;
  std::vector<std::pair<int, std::int64_t>> candidates;
  for (auto it = steps_.begin(); it != newest; ++it) candidates.emplace_back(roundness(it->first), it->first);
  std::sort(candidates.begin(), candidates.end());
  // More than what is needed, so that it is not done at every step.
  const std::int64_t target = budget_bytes / 4 * 3;
  std::vector<std::int64_t> surplus;
  for (const auto& [round, step] : candidates) {
    if (total_ <= target) break;
    const auto found = steps_.find(step);
    total_ -= found->second;
    steps_.erase(found);
    surplus.push_back(step);
  }
  std::sort(surplus.begin(), surplus.end());
  return surplus;
}

}  // namespace lockstep::telemetry
