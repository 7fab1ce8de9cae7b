#include "lockstep/sim/failures/bursts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/sim/random.h"

namespace lockstep::sim {
namespace {

constexpr double kHour = 3600.0, kDay = 86400.0;
constexpr double kBurstGap = kHour;
constexpr double kEpoch = 10 * kDay;
// Of the InfiniteHBD trace (400 servers of an LLM cluster): 159 of 583 faults follow the one before within an hour;
// repairs take 20 h in the median and 133 h in the mean. The shape is that of its first 120 days.
constexpr double kUsualFollows = 159.0 / 583.0;
constexpr int kUsualLargest = 12;
constexpr double kUsualShape = 1.2;
constexpr double kUsualMedianRepair = 20 * kHour, kUsualMeanRepair = 133 * kHour;

// Marsaglia and Tsang 2000 ("A simple method for generating gamma variables"), mean 1.
double gamma_of_mean_one(double shape, Random& random) {
  if (shape < 1) {
    const double boosted = gamma_of_mean_one(shape + 1, random) * (shape + 1);
    return boosted * std::pow(1.0 - random.uniform(), 1.0 / shape) / shape;
  }
  const double d = shape - 1.0 / 3.0, c = 1.0 / std::sqrt(9.0 * d);
  while (true) {
    // Box and Muller 1958.
    const double radius = std::sqrt(-2.0 * std::log1p(-random.uniform()));
    const double normal = radius * std::cos(2.0 * M_PI * random.uniform());
    const double cube = std::pow(1.0 + c * normal, 3.0);
    if (cube <= 0) continue;
    if (std::log1p(-random.uniform()) < 0.5 * normal * normal + d - d * cube + d * std::log(cube))
      return d * cube / shape;
  }
}

class FaultsInBursts final : public FaultSource {
 public:
  explicit FaultsInBursts(BurstModel model) : model_(std::move(model)) {
    double sum = 0.0;
    for (const double share : model_.sizes) up_to_.push_back(sum += share);
  }

  FaultTrace draw(int nodes, double seconds, std::uint64_t seed) const override {
    FaultTrace trace{nodes, seconds, {}};
    Random random(seed);
    const double mean_rate = model_.bursts_per_node_second * nodes;
    if (mean_rate <= 0) return trace;
    const bool varies = model_.shape > 0 && model_.epoch_seconds > 0;
    const double epoch = varies ? model_.epoch_seconds : seconds + warm_up();
    // What is down at the beginning was hit before it.
    double from = -warm_up() - (varies ? random.uniform() * epoch : 0.0);
    for (; from < seconds; from += epoch) {
      const double rate = mean_rate * (varies ? gamma_of_mean_one(model_.shape, random) : 1.0);
      const double until = std::min(from + epoch, seconds);
      if (rate <= 0) continue;
      for (double now = from + random.exponential(rate); now < until; now += random.exponential(rate))
        add_burst(trace, now, random);
    }
    std::stable_sort(trace.faults.begin(), trace.faults.end(),
                     [](const Fault& a, const Fault& b) { return a.begin < b.begin; });
    return trace;
  }

  std::string describe() const override {
    return fmt::format("faults in bursts of {:.2f} nodes, {:.3g} per 1,000 node-days, repaired in {:.3g} h on average",
                       model_.mean_size(), model_.bursts_per_node_second * model_.mean_size() * kDay * 1000.0,
                       model_.repair.mean() / kHour);
  }

 private:
  double warm_up() const { return model_.repair.at(1.0); }

  void add_burst(FaultTrace& trace, double now, Random& random) const {
    const auto size = std::upper_bound(up_to_.begin(), up_to_.end(), random.uniform()) - up_to_.begin() + 1;
    for (std::ptrdiff_t i = 0; i < size; ++i) {
      if (i > 0) now += random.exponential(1.0 / model_.spread_seconds);
      const double end = now + model_.repair.at(random.uniform());
      const int node = static_cast<int>(random.below(static_cast<std::uint64_t>(trace.nodes)));
      if (end > 0 && now < trace.seconds) trace.faults.push_back({std::max(0.0, now), end, node});
    }
  }

  BurstModel model_;
  std::vector<double> up_to_;  // sums of sizes
};

struct Burst {
  double begin = 0.0;
  std::size_t size = 0;
};

std::vector<Burst> bursts_of(const FaultTrace& trace) {
  std::vector<Burst> bursts;
  double before = 0.0;
  for (const Fault& fault : trace.faults) {
    if (fault.begin <= 0) continue;  // was down before the trace began
    if (bursts.empty() || fault.begin - before > kBurstGap) bursts.push_back({fault.begin, 0});
    ++bursts.back().size;
    before = fault.begin;
  }
  return bursts;
}

// Counts of a Gamma-mixed Poisson process have the variance mean + mean^2 / shape, and two thirds of the second term
// where the epochs that are counted begin at another moment than the rates change.
double shape_of(const std::vector<Burst>& bursts, double seconds) {
  const auto epochs = static_cast<std::size_t>(seconds / kEpoch);
  if (epochs < 3) return 0.0;
  std::vector<double> counts(epochs);
  for (const Burst& burst : bursts) {
    const auto epoch = static_cast<std::size_t>(burst.begin / kEpoch);
    if (epoch < epochs) counts[epoch] += 1;
  }
  double mean = 0.0, variance = 0.0;
  for (const double count : counts) mean += count / static_cast<double>(epochs);
  for (const double count : counts) variance += (count - mean) * (count - mean) / static_cast<double>(epochs - 1);
  return variance > mean ? 2.0 / 3.0 * mean * mean / (variance - mean) : 0.0;
}

}  // namespace

double BurstModel::mean_size() const {
  double mean = 0.0;
  for (std::size_t i = 0; i < sizes.size(); ++i) mean += static_cast<double>(i + 1) * sizes[i];
  return mean;
}

BurstModel fit_bursts(const FaultTrace& trace) {
  const std::vector<Burst> bursts = bursts_of(trace);
  if (bursts.size() < 2) {
    throw bad_input(fmt::format("{} faults are too few to fit a model", trace.faults.size()),
                    "give a longer trace, or a rate with --failure-rate");
  }
  BurstModel model;
  model.bursts_per_node_second = static_cast<double>(bursts.size()) / (trace.seconds * trace.nodes);
  for (const Burst& burst : bursts) {
    if (model.sizes.size() < burst.size) model.sizes.resize(burst.size);
    model.sizes[burst.size - 1] += 1.0 / static_cast<double>(bursts.size());
  }
  double gaps = 0.0;
  std::size_t inside = 0;
  for (std::size_t i = 1; i < trace.faults.size(); ++i) {
    const double gap = trace.faults[i].begin - trace.faults[i - 1].begin;
    if (trace.faults[i - 1].begin <= 0 || gap > kBurstGap) continue;
    gaps += gap;
    ++inside;
  }
  model.spread_seconds = inside > 0 ? std::max(1.0, gaps / static_cast<double>(inside)) : 1.0;
  model.epoch_seconds = kEpoch;
  model.shape = shape_of(bursts, trace.seconds);
  model.repair = RepairTimes::observed(trace);
  return model;
}

BurstModel usual_bursts(double faults_per_node_second) {
  BurstModel model;
  double left = 1.0;
  for (int size = 1; size < kUsualLargest; ++size) {
    model.sizes.push_back(left * (1.0 - kUsualFollows));
    left *= kUsualFollows;
  }
  model.sizes.push_back(left);
  model.bursts_per_node_second = faults_per_node_second / model.mean_size();
  model.epoch_seconds = kEpoch;
  model.shape = kUsualShape;
  model.repair = RepairTimes::log_normal(kUsualMedianRepair, kUsualMeanRepair);
  return model;
}

std::unique_ptr<FaultSource> faults_in_bursts(BurstModel model) {
  return std::make_unique<FaultsInBursts>(std::move(model));
}

SparesNeeded spares_needed(const FaultSource& source, int nodes, double seconds, double share, int samples,
                           std::uint64_t seed) {
  std::vector<int> needed;
  needed.reserve(static_cast<std::size_t>(samples));
  for (int i = 0; i < samples; ++i)
    needed.push_back(nodes_down(source.draw(nodes, seconds, combine(seed, static_cast<std::uint64_t>(i))), share));
  std::sort(needed.begin(), needed.end());
  const auto at = [&](double q) {
    return static_cast<double>(
        needed[static_cast<std::size_t>(std::lround(q * static_cast<double>(needed.size() - 1)))]);
  };
  return {at(0.05), at(0.5), at(0.95)};
}

}  // namespace lockstep::sim
