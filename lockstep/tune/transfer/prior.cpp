#include "lockstep/tune/transfer/prior.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/tune/models/feasibility.h"
#include "lockstep/tune/models/speed_sketch.h"
#include "lockstep/tune/models/surrogate.h"

namespace lockstep::tune {
namespace {

constexpr std::size_t kMostTrials = 60;  // of the model: it is asked about thousands of settings per trial
// Memory may be another now.
constexpr double kLeastFits = 0.25, kMostFits = 0.95;

// The faster half of what is kept, and of the rest every so-manieth.
std::vector<Trial> choose_trials(std::span<const Trial> earlier) {
  std::vector<Trial> ran;
  for (const Trial& trial : earlier)
    if (measured(trial)) ran.push_back(trial);
  if (ran.size() <= kMostTrials) return ran;
  std::stable_sort(ran.begin(), ran.end(), [](const Trial& a, const Trial& b) { return a.throughput > b.throughput; });
  const std::size_t half = kMostTrials / 2, rest = ran.size() - half;
  std::vector<Trial> chosen(ran.begin(), ran.begin() + static_cast<std::ptrdiff_t>(half));
  for (std::size_t i = 0; i < kMostTrials - half; ++i) chosen.push_back(ran[half + i * rest / (kMostTrials - half)]);
  return chosen;
}

class TransferPrior final : public Prior {
 public:
  TransferPrior(const Space& space, std::span<const Trial> earlier, const std::vector<Trial>& ran,
                std::unique_ptr<Prior> base)
      : space_(space),
        sketch_(space),
        base_(std::move(base)),
        speed_(Surrogate::fit(space_, observations(ran), true)),
        feasibility_(learn_feasibility(earlier)) {}

  std::optional<Belief> operator()(const Config& config) const override {
    const std::vector<double> coordinates = space_.coordinates(config);
    const Belief base = base_belief(config);
    Belief belief;
    belief.log_throughput = speed_.predict(coordinates, base.log_throughput).mean;
    belief.fits_probability =
        std::clamp(feasibility_.probability(config, coordinates, base.fits_probability), kLeastFits, kMostFits);
    if (base_) belief.fits_probability = std::min(belief.fits_probability, base.fits_probability);
    return belief;
  }

 private:
  Belief base_belief(const Config& config) const {
    if (!base_) return {sketch_.log_throughput(config), 1};
    return (*base_)(config).value_or(Belief{0, 1});
  }

  std::vector<Observation> observations(const std::vector<Trial>& ran) const {
    std::vector<Observation> seen;
    for (const Trial& trial : ran) {
      Observation observation;
      observation.coordinates = space_.coordinates(trial.config);
      observation.log_throughput = std::log(trial.throughput);
      observation.prior_log_throughput = base_belief(trial.config).log_throughput;
      observation.moment = static_cast<double>(trial.number);
      seen.push_back(std::move(observation));
    }
    return seen;
  }

  Feasibility learn_feasibility(std::span<const Trial> earlier) const {
    std::vector<FeasibilityPoint> points;
    for (const Trial& trial : earlier)
      points.push_back({trial.config, space_.coordinates(trial.config), trial.outcome, trial.message,
                        base_belief(trial.config).fits_probability});
    return Feasibility::fit(space_, points, base_ != nullptr);
  }

  const Space space_;
  const SpeedSketch sketch_;
  const std::unique_ptr<Prior> base_;
  const Surrogate speed_;
  const Feasibility feasibility_;
};

}  // namespace

std::unique_ptr<Prior> make_transfer_prior(const Space& space, std::span<const Trial> earlier,
                                           std::unique_ptr<Prior> base) {
  const std::vector<Trial> ran = choose_trials(earlier);
  if (ran.empty()) return base;
  return std::make_unique<TransferPrior>(space, earlier, ran, std::move(base));
}

}  // namespace lockstep::tune
