#include "lockstep/tune/evaluators/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "lockstep/base/error.h"
#include "lockstep/plan/layout.h"
#include "lockstep/tune/objectives/objective.h"

namespace lockstep::tune {
namespace {

// How much longer the first steps take: allocations, kernels chosen, caches filled.
constexpr std::array<double, 3> kWarmUp{3.0, 1.3, 1.05};
constexpr double kRefusedShare = 0.3;  // of the start, until a configuration is refused

std::uint64_t mixed(std::uint64_t x) {  // splitmix64 (Steele et al. 2014)
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// A standard normal variate that is a function of its three numbers (Box and Muller 1958).
double normal(std::uint64_t seed, std::uint64_t trial, std::uint64_t draw) {
  const std::uint64_t key = mixed(mixed(mixed(seed) ^ trial) ^ draw);
  const auto uniform = [](std::uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) / 9007199254740992.0; };
  return std::sqrt(-2 * std::log(uniform(key))) * std::cos(2 * std::numbers::pi * uniform(mixed(key)));
}

class SimulateEvaluator : public Evaluator {
 public:
  SimulateEvaluator(std::shared_ptr<const JobPricer> pricer, const SimulateOptions& options)
      : pricer_(std::move(pricer)), options_(options) {}

  Measurement evaluate(const EvaluationRequest& request) override {
    const std::optional<JobPrice> price = pricer_->price(request.config);
    if (!price) {
      const spec::Cluster& cluster = pricer_->knobs().base().cluster;
      throw environment_error(fmt::format("{} cannot be simulated: no profile of it", cluster.name),
                              "run `lockstep calibrate` for every number of ranks and threads, or name devices that "
                              "have figures: cluster=1x8xH100");
    }
    return price->outcome == Outcome::kMeasured ? run(request, *price) : fail(request, *price);
  }

  double devices(const Config& config) const override { return static_cast<double>(pricer_->knobs().ranks(config)); }

  std::string unit() const override {
    return pricer_->knobs().base().model.is_language_model() ? "tokens/s" : "samples/s";
  }

 private:
  double start_seconds(const JobPrice& price) const {
    const spec::Job& job = pricer_->knobs().base();
    const double weights = static_cast<double>(spec::parameter_count(job.model)) *
                           static_cast<double>(plan::bytes_per_element(job.precision));
    const double per_node = static_cast<double>(job.cluster.groups.front().devices_per_node);
    const double nodes = std::max(1.0, static_cast<double>(price.layout.world()) / per_node);
    return options_.start_seconds + (job.weights.empty() ? 0.0 : weights / (options_.read_bytes_per_second * nodes));
  }

  Measurement fail(const EvaluationRequest& request, const JobPrice& price) const {
    Measurement measurement;
    measurement.outcome = price.outcome;
    measurement.message = price.problem;
    const double start = start_seconds(price);
    const double until = price.outcome == Outcome::kInvalid ? kRefusedShare * start : start + price.step_seconds;
    measurement.seconds = std::min(until, request.budget_seconds);
    return measurement;
  }

  Measurement run(const EvaluationRequest& request, const JobPrice& price) const {
    const auto trial = static_cast<std::uint64_t>(request.trial);
    const double launch = std::exp(options_.launch_spread * normal(options_.seed, trial, 0));
    Measurement measurement;
    measurement.seconds = start_seconds(price);
    if (price.memory_bytes > 0) measurement.values[kDeviceMemoryValue] = price.memory_bytes;
    for (std::int64_t step = 0; step < options_.steps; ++step) {
      const auto draw = static_cast<std::uint64_t>(step + 1);
      const auto at = static_cast<std::size_t>(step);
      const double noise = launch * std::exp(options_.step_spread * normal(options_.seed, trial, draw));
      const double slower = at < kWarmUp.size() ? kWarmUp[at] : 1.0;
      const double seconds = price.step_seconds * slower / noise;
      if (measurement.seconds + seconds > request.budget_seconds) break;
      measurement.seconds += seconds;
      measurement.samples.push_back(price.per_second * noise / slower);
      const bool stopped = request.stop != nullptr && *request.stop;
      if (stopped || (request.keep_going && !request.keep_going(measurement.samples))) {
        measurement.stopped_early = true;
        break;
      }
    }
    if (!measurement.samples.empty()) return measurement;
    measurement.outcome = Outcome::kTimeout;
    measurement.seconds = request.budget_seconds;
    measurement.message = fmt::format("no step within {:.0f} s: starting alone takes {:.0f} s", request.budget_seconds,
                                      start_seconds(price));
    return measurement;
  }

  std::shared_ptr<const JobPricer> pricer_;
  SimulateOptions options_;
};

}  // namespace

std::unique_ptr<Evaluator> make_simulate_evaluator(std::shared_ptr<const JobPricer> pricer,
                                                   const SimulateOptions& options) {
  return std::make_unique<SimulateEvaluator>(std::move(pricer), options);
}

}  // namespace lockstep::tune
