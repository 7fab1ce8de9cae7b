#include "lockstep/tune/models/planner_prior.h"

#include <cmath>
#include <functional>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace lockstep::tune {
namespace {

// What a configuration that the planner refuses counts as, relative to the default: its speed is not known.
constexpr double kRefusedLogDistance = -1;
constexpr std::size_t kMostRemembered = 100'000;  // some 50 MB

struct ConfigHash {
  std::size_t operator()(const Config& config) const {
    std::size_t hash = config.values.size();
    for (const Value& value : config.values) {
      hash ^= std::hash<Value>()(value) + 0x9e3779b97f4a7c15ull + (hash << 6) + (hash >> 2);
    }
    return hash;
  }
};

class PlannerPrior : public Prior {
 public:
  explicit PlannerPrior(std::shared_ptr<const JobPricer> pricer) : pricer_(std::move(pricer)) {
    const auto usual = price(pricer_->knobs().space().default_config());
    if (usual && usual->per_second > 0) default_log_ = std::log(usual->per_second);
  }

  std::optional<Belief> operator()(const Config& config) const override {
    {
      const std::shared_lock lock(mutex_);
      const auto found = known_.find(config);
      if (found != known_.end()) return found->second;
    }
    const std::optional<Belief> belief = ask(config);
    const std::unique_lock lock(mutex_);
    if (known_.size() >= kMostRemembered) known_.clear();
    known_.emplace(config, belief);
    return belief;
  }

 private:
  std::optional<JobPrice> price(const Config& config) const {
    try {
      return pricer_->price(config);
    } catch (const std::exception&) {  // a belief is never worth a study
      return std::nullopt;
    }
  }

  std::optional<Belief> ask(const Config& config) const {
    const std::optional<JobPrice> priced = price(config);
    if (!priced) return std::nullopt;
    if (!(priced->per_second > 0)) {
      const bool refused = priced->outcome == Outcome::kInvalid || priced->out_of_memory_probability >= 1;
      return Belief{default_log_ + kRefusedLogDistance, refused ? 0.0 : 1 - priced->out_of_memory_probability};
    }
    return Belief{std::log(priced->per_second), 1 - priced->out_of_memory_probability};
  }

  std::shared_ptr<const JobPricer> pricer_;
  double default_log_ = 0;
  mutable std::shared_mutex mutex_;
  mutable std::unordered_map<Config, std::optional<Belief>, ConfigHash> known_;
};

}  // namespace

std::unique_ptr<Prior> make_planner_prior(std::shared_ptr<const JobPricer> pricer) {
  return std::make_unique<PlannerPrior>(std::move(pricer));
}

}  // namespace lockstep::tune
