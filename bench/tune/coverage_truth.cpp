#include "bench/tune/coverage_truth.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "lockstep/tune/importance/importance.h"

namespace lockstep::bench {
namespace {

struct Entry {
  std::uint64_t key;  // levels as digits, lowest for "inactive"
  double value;       // log throughput
};

// Sums over groups of entries whose keys agree outside (or inside) one digit.
struct Group {
  double count = 0, sum = 0, square = 0;
  void add(double value) {
    count += 1;
    sum += value;
    square += value * value;
  }
  double mean() const { return sum / count; }
  double variance() const { return std::max(0.0, square / count - mean() * mean()); }
};

double main_variance(const std::vector<Entry>& entries, std::uint64_t step, std::uint64_t radix) {
  std::vector<Group> levels(radix);
  for (const Entry& entry : entries) levels[entry.key / step % radix].add(entry.value);
  Group means;
  for (const Group& level : levels) {
    if (level.count == 0) continue;
    means.count += level.count;
    means.sum += level.sum;
    means.square += level.count * level.mean() * level.mean();
  }
  return means.variance();
}

double total_variance(std::vector<Entry> entries, std::uint64_t step, std::uint64_t radix) {
  for (Entry& entry : entries) entry.key -= entry.key / step % radix * step;
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.key < b.key; });
  double within = 0;
  for (std::size_t first = 0; first < entries.size();) {
    Group group;
    std::size_t last = first;
    while (last < entries.size() && entries[last].key == entries[first].key) group.add(entries[last++].value);
    within += group.count * group.variance();
    first = last;
  }
  return within / static_cast<double>(entries.size());
}

}  // namespace

VarianceTruth variance_truth(const Surface& surface) {
  std::vector<std::uint64_t> steps, radices;
  std::uint64_t step = 1;
  for (const SurfaceKnob& knob : surface.knobs()) {
    steps.push_back(step);
    radices.push_back(knob.levels.size() + 1);
    step *= radices.back();
  }
  std::vector<Entry> entries;
  Group all;
  surface.for_each([&](PointView point) {
    const SurfaceTruth truth = surface.at(point);
    if (truth.outcome != tune::Outcome::kMeasured) return;
    std::uint64_t key = 0;
    for (std::size_t i = 0; i < point.size(); ++i) key += static_cast<std::uint64_t>(point[i] + 1) * steps[i];
    entries.push_back({key, std::log(truth.throughput)});
    all.add(entries.back().value);
  });
  VarianceTruth result;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    result.main.push_back(100 * main_variance(entries, steps[i], radices[i]) / all.variance());
    result.total.push_back(
        std::max(result.main.back(), 100 * total_variance(entries, steps[i], radices[i]) / all.variance()));
  }
  return result;
}

std::map<std::string, double> set_back_truth(const Surface& surface, const tune::Space& space,
                                             const tune::Config& winner) {
  std::map<std::string, double> costs;
  for (const tune::Knob& knob : space.knobs()) costs[knob.name] = 0;
  const double best = surface.at(winner).throughput;
  for (const tune::SetBack& set_back : tune::set_backs(space, winner, {}))
    costs[space.knobs()[set_back.knob].name] = 100 * (1 - surface.at(set_back.config).throughput / best);
  return costs;
}

Verdict judge_top(const std::map<std::string, double>& truth, const tune::Conclusion& conclusion) {
  std::vector<double> sorted;
  for (const auto& [knob, cost] : truth) sorted.push_back(cost);
  std::sort(sorted.rbegin(), sorted.rend());
  const double third = sorted[std::min<std::size_t>(2, sorted.size() - 1)];
  const auto belongs = [&](const std::string& knob) { return truth.at(knob) >= third; };
  // Knobs that cost exactly nothing need not be named.
  const auto wanted = static_cast<std::size_t>(
      std::count_if(sorted.begin(), sorted.begin() + std::min<std::ptrdiff_t>(3, std::ssize(sorted)),
                    [](double cost) { return cost != 0; }));
  const bool tops = std::all_of(conclusion.top.begin(), conclusion.top.end(), belongs);
  if (conclusion.tied.empty())
    return tops && conclusion.top.size() >= wanted && conclusion.top.size() <= 3 ? Verdict::kRight : Verdict::kWrongSet;
  double low = 1e300, high = -1e300;
  std::size_t belonging = conclusion.top.size();
  for (const std::string& knob : conclusion.tied) {
    low = std::min(low, truth.at(knob));
    high = std::max(high, truth.at(knob));
    belonging += belongs(knob) ? 1 : 0;
  }
  if (high - low >= 1 || conclusion.top.size() + conclusion.tied.size() > 4) return Verdict::kWrongTie;
  return tops && belonging >= std::min<std::size_t>(3, wanted) ? Verdict::kRightByTie : Verdict::kWrongSet;
}

}  // namespace lockstep::bench
