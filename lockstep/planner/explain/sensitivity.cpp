#include "lockstep/planner/explain/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/cost/step_time.h"
#include "lockstep/planner/explain/assumptions.h"
#include "lockstep/planner/explain/terms.h"
#include "lockstep/planner/search/objective.h"

namespace lockstep::planner {
namespace {

constexpr std::size_t kMost = 6;
constexpr double kSmallest = 0.001;   // change of the time that is worth a line
constexpr double kClearGain = 0.005;  // of a rival: below it the two are the same choice

// Per 1000 node-days: the better of two research clusters (RSC-2, Kokolis et al. 2025), and OPT-175B's logbook (two of
// 124 nodes a day).
constexpr double kFewestFailures = 2.3, kMostFailures = 16;
// An interruption of Llama 3 405B cost at most so long (54 days, 419 interruptions, over 90% effective), the start of
// processes aside at least a minute.
constexpr double kQuickestRestart = 60, kSlowestRestart = 1114;
constexpr double kStorageFactor = 4;  // shared with others, or better than assumed
constexpr double kSecondsPerThousandDays = 1000.0 * 86400.0;

class Study {
 public:
  Study(const SearchRequest& request, const plan::Candidate& best, const std::vector<Ranked>& rivals)
      : request_(request),
        best_(best),
        rivals_(rivals),
        run_(run_of(request, best.layout, best.batch)),
        pricer_(request.model, request.cluster, request.profile, pricer_options(request)),
        by_(cost::priced_by(run_, request.profile)),
        scorer_(request, worlds()),
        world_(scorer_.world(best.layout.world())),
        step_(cost::price(run_, request.profile).step_seconds()) {}

  Sensitivity collect() {
    of_profile();
    of_cluster();
    const auto change = [](const Assumption& each) {
      return std::max(std::abs(each.time_at_low), std::abs(each.time_at_high));
    };
    std::stable_sort(found_.begin(), found_.end(), [&](const auto& a, const auto& b) { return change(a) > change(b); });
    const auto small =
        std::find_if(found_.begin(), found_.end(), [&](const auto& each) { return change(each) < kSmallest; });
    const auto worth = static_cast<std::size_t>(small - found_.begin());
    found_.resize(std::min(found_.size(), std::clamp<std::size_t>(worth, 1, kMost)));
    return std::move(found_);
  }

 private:
  std::vector<std::int64_t> worlds() const {
    std::vector<std::int64_t> all{best_.layout.world()};
    for (const Ranked& rival : rivals_) all.push_back(rival.layout.world());
    return all;
  }

  // Of a unit of work, against the plan's.
  double time_change(double step_seconds, const WorldTerms& world) const {
    const double before = step_ / scorer_.cadence(world_, step_).goodput;
    return step_seconds / scorer_.cadence(world, step_seconds).goodput / before - 1;
  }

  void of_profile() {
    std::vector<Dial> dials = dials_of(run_, request_.profile, pricer_);
    const double narrowing = narrowing_of(dials);
    for (const Dial& dial : dials) {
      const double reach = std::exp(cost::kNinetyPercent * narrowing * dial.spread);
      Assumption assumption{.name = dial.name,
                            .meaning = dial.meaning,
                            .unit = dial.unit,
                            .value = dial.value,
                            .low = std::max(dial.least, dial.value / reach),
                            .high = std::min(dial.most, dial.value * reach),
                            .evidence = evidence(),
                            .measurement = measurement_of(dial.settle),
                            .command = command_of(dial.settle, run_)};
      assumption.time_at_low = time_change(dial.step_seconds(assumption.low), world_);
      find_rival(assumption);
      assumption.time_at_high = time_change(dial.step_seconds(assumption.high), world_);
      find_rival(assumption);
      found_.push_back(std::move(assumption));
    }
  }

  // By what factor the spreads of all dials together have to change to be as uncertain as the profile is.
  double narrowing_of(const std::vector<Dial>& dials) const {
    double variance = 0;
    for (const Dial& dial : dials) {
      const double reach = std::exp(dial.spread);
      const double low = dial.step_seconds(std::max(dial.least, dial.value / reach));
      const double high = dial.step_seconds(std::min(dial.most, dial.value * reach));
      variance += std::pow(std::log(high / low) / 2, 2);
    }
    if (variance <= 0) return 1;
    const double factor = sigma() / std::sqrt(variance);
    return by_ == cost::PricedBy::kTables ? factor : std::min(1.0, factor);
  }

  // Of the logarithm of the predicted step.
  double sigma() const {
    const plan::Interval& step = best_.prediction->step_seconds;
    return std::log(step.high / step.expected) / cost::kNinetyPercent;
  }

  std::string evidence() const {
    const double percent = 100 * sigma();
    if (by_ == cost::PricedBy::kFormulas && request_.profile.fitted && request_.profile.fitted->runs > 0) {
      return fmt::format("stacks that were published differ so much, of a profile that is off by {:.0f}% (one sigma)",
                         percent);
    }
    return fmt::format("its share in what measured steps were off by ({:.0f}%, one sigma)", percent);
  }

  // At the constants that the pricer has now: does another candidate score higher?
  void find_rival(Assumption& assumption) {
    if (by_ != cost::PricedBy::kFormulas) return;
    const auto score = [&](const plan::Layout& layout, const plan::BatchPlan& batch) {
      const cost::Price price = pricer_.price(layout, batch);
      const double seconds = considered_seconds(layout, price, request_.cluster.groups.front().devices_per_node);
      return scorer_.score(scorer_.world(layout.world()), seconds);
    };
    const double own = score(best_.layout, best_.batch);
    for (const Ranked& rival : rivals_) {
      if (!is_feasible(rival.price, request_.constraints)) continue;
      const double gain = (score(rival.layout, rival.batch) - own) / std::abs(own);
      if (!(gain > std::max(kClearGain, assumption.other_gain))) continue;
      assumption.other_gain = gain;
      assumption.other_layout = plan::to_string(rival.layout);
    }
  }

  void of_cluster() {
    if (world_.cadence.failures_per_second <= 0) return;
    const auto change = [this](void (*turn)(CadenceQuestion&, double), double value) {
      WorldTerms world = world_;
      turn(world.cadence, value);
      return time_change(step_, world);
    };
    const auto add = [&](Assumption assumption, Settle settle, void (*turn)(CadenceQuestion&, double)) {
      assumption.low = std::min(assumption.low, assumption.value);
      assumption.high = std::max(assumption.high, assumption.value);
      // Dials are relative where the question counts something else than the assumption is told in.
      assumption.time_at_low = change(turn, assumption.low / assumption.value);
      assumption.time_at_high = change(turn, assumption.high / assumption.value);
      assumption.measurement = measurement_of(settle);
      assumption.command = command_of(settle, run_);
      found_.push_back(std::move(assumption));
    };
    double nodes = 0;
    for (const spec::NodeGroup& group : run_.cluster.groups) nodes += static_cast<double>(group.nodes);
    add({.name = "failure rate",
         .meaning = "failures of a node that end its work",
         .unit = "per 1000 node-days",
         .value = world_.cadence.failures_per_second * kSecondsPerThousandDays / nodes,
         .low = kFewestFailures,
         .high = kMostFailures,
         .evidence = "published clusters: RSC-2 (Kokolis et al. 2025) to OPT-175B"},
        Settle::kFailures, [](CadenceQuestion& question, double factor) { question.failures_per_second *= factor; });
    add({.name = "time of a restart",
         .meaning = "from the loss of a node until training goes on from the checkpoint",
         .unit = "s",
         .value = world_.cadence.restart_seconds,
         .low = kQuickestRestart,
         .high = kSlowestRestart,
         .evidence = "a minute to what an interruption of Llama 3 405B cost at most"},
        Settle::kDrill, [](CadenceQuestion& question, double factor) { question.restart_seconds *= factor; });
    if (world_.cadence.write_bytes_per_second <= 0) return;
    add({.name = "storage",
         .meaning = "writing checkpoints, all nodes together",
         .unit = "B/s",
         .value = world_.cadence.write_bytes_per_second,
         .low = world_.cadence.write_bytes_per_second / kStorageFactor,
         .high = world_.cadence.write_bytes_per_second * kStorageFactor,
         .evidence = "a quarter, where others use it too, to four times what the cluster's file says"},
        Settle::kSave, [](CadenceQuestion& question, double factor) { question.write_bytes_per_second *= factor; });
  }

  const SearchRequest& request_;
  const plan::Candidate& best_;
  const std::vector<Ranked>& rivals_;
  plan::Run run_;
  cost::Pricer pricer_;
  cost::PricedBy by_;
  Scorer scorer_;
  WorldTerms world_;
  double step_;
  Sensitivity found_;
};

}  // namespace

Sensitivity sensitivity_of(const SearchRequest& request, const plan::Candidate& best,
                           const std::vector<Ranked>& rivals) {
  return Study(request, best, rivals).collect();
}

nlohmann::json to_json(const Sensitivity& sensitivity) {
  nlohmann::json all = nlohmann::json::array();
  for (const Assumption& assumption : sensitivity) {
    all.push_back({{"name", assumption.name},
                   {"meaning", assumption.meaning},
                   {"unit", assumption.unit},
                   {"value", assumption.value},
                   {"low", assumption.low},
                   {"high", assumption.high},
                   {"evidence", assumption.evidence},
                   {"time_at_low", assumption.time_at_low},
                   {"time_at_high", assumption.time_at_high},
                   {"other_layout", assumption.other_layout},
                   {"other_gain", assumption.other_gain},
                   {"measurement", assumption.measurement},
                   {"command", assumption.command}});
  }
  return {{"assumptions", std::move(all)}};
}

}  // namespace lockstep::planner
