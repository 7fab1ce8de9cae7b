// What-if: the step is replayed with some durations made usual, and what it gains is what their being unusual costs.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "lockstep/base/text.h"
#include "lockstep/diagnose/foreign/operations_csv.h"
#include "lockstep/diagnose/foreign/trace_findings.h"

namespace lockstep::diagnose {
namespace {

using sim::Operation;
using sim::OperationKind;
using sim::StepReplay;

// The lower middle: of two workers the faster one is how a stage should be.
double lower_median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

double middle_of(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const double low = lower_median(values);
  if (values.size() % 2 == 1) return low;
  const auto upper = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, upper);
  return 0.5 * (low + *upper);
}

double mean_of(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return values.empty() ? 0.0 : sum / static_cast<double>(values.size());
}

using WorkerKey = std::pair<int, int>;  // data rank, stage

// Computing times of one kind (forward or backward): a worker's mean is its stage's level times its own factor.
struct Levels {
  std::map<WorkerKey, double> worker;
  std::map<int, double> stage;
  double all = 0.0;
};

class WhatIf {
 public:
  explicit WhatIf(const std::vector<Operation>& operations) {
    std::map<std::int64_t, std::vector<Operation>> by_step;
    for (const Operation& one : operations) by_step[one.step].push_back(one);
    for (auto& [step, own] : by_step) steps_.emplace_back(std::move(own));
    find_usual();
    find_levels();
  }

  StragglerFigures figures() const {
    StragglerFigures figures;
    figures.steps = static_cast<int>(steps_.size());
    figures.recorded_seconds = mean_over_steps([](const StepReplay& step) { return step.recorded_seconds(); });
    figures.replayed_seconds = mean_over_steps([](const StepReplay& step) { return step.length(step.seconds()); });
    figures.ideal_seconds =
        replayed([&](const Operation& one, double) { return usual_[static_cast<std::size_t>(one.kind)]; });
    figures.without_slow_workers = replayed([&](const Operation& one, double seconds) {
      if (!sim::is_compute(one.kind)) return seconds;
      const double own = of(one).worker.at({one.data_rank, one.stage}), stage = of(one).stage.at(one.stage);
      return own > stage && own > 0.0 ? seconds * stage / own : seconds;
    });
    figures.without_uneven_stages = replayed([&](const Operation& one, double seconds) {
      if (!sim::is_compute(one.kind)) return seconds;
      const double stage = of(one).stage.at(one.stage);
      return stage > 0.0 ? seconds * of(one).all / stage : seconds;
    });
    figures.without_uneven_batches = replayed([&](const Operation& one, double seconds) {
      return sim::is_compute(one.kind) ? of(one).worker.at({one.data_rank, one.stage}) : seconds;
    });
    add_workers(figures);
    add_steps(figures);
    return figures;
  }

 private:
  const Levels& of(const Operation& one) const { return levels_[one.kind == OperationKind::kForwardCompute ? 0 : 1]; }

  template <class Change>
  static double length(const StepReplay& step, Change&& change) {
    std::vector<double> seconds = step.seconds();
    for (std::size_t i = 0; i < seconds.size(); ++i) seconds[i] = change(step.operations()[i], seconds[i]);
    return step.length(seconds);
  }

  template <class Of>
  double mean_over_steps(Of&& value) const {
    double sum = 0.0;
    for (const StepReplay& step : steps_) sum += value(step);
    return steps_.empty() ? 0.0 : sum / static_cast<double>(steps_.size());
  }

  template <class Change>
  double replayed(Change&& change) const {
    return mean_over_steps([&](const StepReplay& step) { return length(step, change); });
  }

  // Computing: the mean, so that no work is lost. Communication: the median, because its outliers are not work.
  void find_usual() {
    std::array<std::vector<double>, sim::kOperationKinds> all;
    for (const StepReplay& step : steps_) {
      for (std::size_t i = 0; i < step.seconds().size(); ++i) {
        all[static_cast<std::size_t>(step.operations()[i].kind)].push_back(step.seconds()[i]);
      }
    }
    for (std::size_t kind = 0; kind < all.size(); ++kind) {
      const bool talk = sim::is_communication(static_cast<OperationKind>(kind));
      usual_[kind] = talk ? middle_of(all[kind]) : mean_of(all[kind]);
    }
  }

  void find_levels() {
    for (const bool forward : {true, false}) {
      Levels& levels = levels_[forward ? 0 : 1];
      std::map<WorkerKey, std::vector<double>> own;
      for (const StepReplay& step : steps_) {
        for (const Operation& one : step.operations()) {
          if (sim::is_compute(one.kind) && (one.kind == OperationKind::kForwardCompute) == forward) {
            own[{one.data_rank, one.stage}].push_back(one.seconds);
          }
        }
      }
      std::map<int, std::vector<double>> by_stage;
      for (const auto& [key, times] : own) {
        levels.worker[key] = mean_of(times);
        by_stage[key.second].push_back(levels.worker[key]);
        spreads_.push_back(spread_of(times));
      }
      std::vector<double> stages;
      stages.reserve(by_stage.size());
      for (const auto& [stage, means] : by_stage) stages.push_back(levels.stage[stage] = lower_median(means));
      levels.all = mean_of(stages);
    }
  }

  static double spread_of(const std::vector<double>& times) {
    const double mean = mean_of(times);
    double sum = 0.0;
    for (const double time : times) sum += (time - mean) * (time - mean);
    return mean > 0.0 ? std::sqrt(sum / static_cast<double>(times.size())) / mean : 0.0;
  }

  void add_workers(StragglerFigures& figures) const {
    std::map<WorkerKey, int> ranks;
    for (const StepReplay& step : steps_) {
      for (const Operation& one : step.operations()) ranks.try_emplace({one.data_rank, one.stage}, one.rank);
    }
    const auto both = [&](auto&& level) { return level(levels_[0]) + level(levels_[1]); };
    for (const auto& entry : ranks) {
      const WorkerKey key = entry.first;
      const double own = both([&](const Levels& l) { return l.worker.contains(key) ? l.worker.at(key) : 0.0; });
      const double stage =
          both([&](const Levels& l) { return l.stage.contains(key.second) ? l.stage.at(key.second) : 0.0; });
      figures.workers.push_back({entry.second, key.first, key.second, stage > 0.0 ? own / stage : 1.0});
      if (std::cmp_less_equal(figures.stage_factor.size(), key.second)) {
        figures.stage_factor.resize(static_cast<std::size_t>(key.second) + 1, 1.0);
      }
      const double all = levels_[0].all + levels_[1].all;
      figures.stage_factor[static_cast<std::size_t>(key.second)] = all > 0.0 ? stage / all : 1.0;
    }
    std::ranges::stable_sort(figures.workers, std::greater<>(), &StragglerFigures::Worker::factor);
    figures.batch_spread = mean_of(spreads_);
  }

  // The same operation of the same worker in other steps.
  using PauseKey = std::tuple<int, int, OperationKind, int>;  // data rank, stage, kind, sequence
  static PauseKey key_of(const Operation& one) { return {one.data_rank, one.stage, one.kind, one.sequence}; }

  void add_steps(StragglerFigures& figures) const {
    std::map<PauseKey, std::vector<double>> pauses;
    for (const StepReplay& step : steps_) {
      for (std::size_t i = 0; i < step.operations().size(); ++i)
        pauses[key_of(step.operations()[i])].push_back(step.pauses()[i]);
    }
    const auto usual = [&](const Operation& one, double) { return usual_[static_cast<std::size_t>(one.kind)]; };
    for (const StepReplay& step : steps_) {
      if (step.operations().empty()) continue;
      StragglerFigures::Step row;
      row.step = step.operations().front().step;
      row.recorded_seconds = step.recorded_seconds();
      row.simulated_seconds = step.length(step.seconds(), step.pauses());
      row.replayed_seconds = step.length(step.seconds());
      row.ideal_seconds = length(step, usual);
      std::vector<double> others = step.pauses();
      for (std::size_t i = 0; i < others.size(); ++i) {
        std::vector<double> all = pauses.at(key_of(step.operations()[i]));
        all.erase(std::ranges::find(all, others[i]));
        others[i] = middle_of(std::move(all));
      }
      row.foretold_seconds =
          steps_.size() > 1 ? step.length(step.seconds(), others) : std::numeric_limits<double>::quiet_NaN();
      figures.per_step.push_back(row);
    }
  }

  std::vector<StepReplay> steps_;
  std::array<double, sim::kOperationKinds> usual_{};
  std::array<Levels, 2> levels_;  // forward, backward
  std::vector<double> spreads_;
};

std::string slow_down_text(const StragglerFigures& f) {
  return fmt::format(
      "the step takes {:.3f} s, {:.3f} times as long as without stragglers ({:.3f} s, {} steps replayed)",
      f.replayed_seconds, f.slow_down(), f.ideal_seconds, f.steps);
}

Finding finding_of(Cause cause, const StragglerFigures& f, double without) {
  Finding finding;
  finding.cause = cause;
  finding.cost_percent = 100.0 * (1.0 - without / f.replayed_seconds);
  finding.gain_percent = 100.0 * (f.replayed_seconds / without - 1.0);
  finding.confidence = 0.9;
  return finding;
}

Finding slow_workers(const StragglerFigures& f) {
  Finding finding = finding_of(Cause::kSlowRank, f, f.without_slow_workers);
  constexpr double kAlmostAsSlow = 0.5;  // of how much the slowest one is behind
  for (const auto& worker : f.workers) {
    if (worker.factor - 1.0 >= kAlmostAsSlow * (f.workers.front().factor - 1.0)) finding.ranks.push_back(worker.rank);
  }
  const auto& worst = f.workers.front();
  finding.evidence =
      fmt::format("{}; rank {} (data rank {}, stage {}) computes {:.2f} times as long as its peers of the same stage",
                  slow_down_text(f), worst.rank, worst.data_rank, worst.stage, worst.factor);
  finding.fix = fmt::format(
      "take the node of rank {} out and look at it (clocks, ECC, temperature): its peers do the same work", worst.rank);
  return finding;
}

Finding uneven_stages(const StragglerFigures& f) {
  Finding finding = finding_of(Cause::kStageImbalance, f, f.without_uneven_stages);
  const auto worst = static_cast<int>(std::ranges::max_element(f.stage_factor) - f.stage_factor.begin());
  for (const auto& worker : f.workers) {
    if (worker.stage == worst) finding.ranks.push_back(worker.rank);
  }
  const bool last = std::cmp_equal(worst + 1, f.stage_factor.size());
  finding.evidence =
      fmt::format("{}; stage {} of {} computes {:.2f} times as long as the mean of the stages", slow_down_text(f),
                  worst, f.stage_factor.size(), f.stage_factor[static_cast<std::size_t>(worst)]);
  finding.fix = fmt::format("move layers from stage {} to the others{}", worst,
                            last ? " (it also holds the output layer and the loss): with Megatron "
                                   "--decoder-last-pipeline-num-layers, here layout.stage_layers"
                                 : " (layout.stage_layers)");
  return finding;
}

Finding uneven_batches(const StragglerFigures& f) {
  Finding finding = finding_of(Cause::kDataImbalance, f, f.without_uneven_batches);
  finding.confidence = 0.85;
  finding.evidence = fmt::format(
      "{}; the computing time of one worker differs by {:.0f}% from micro-batch to micro-batch: their sequences "
      "differ in length",
      slow_down_text(f), 100.0 * f.batch_spread);
  finding.fix =
      "pack sequences so that the sum of squares of their lengths is the same in every micro-batch and on every data "
      "rank";
  return finding;
}

}  // namespace

StragglerFigures straggler_figures(const std::vector<Operation>& operations) { return WhatIf(operations).figures(); }

std::vector<Finding> straggler_findings(const StragglerFigures& f) {
  std::vector<Finding> found;
  if (f.replayed_seconds <= 0.0 || f.workers.empty()) return found;
  // One worker per stage: a stage in the middle has no reason to be longer, so its worker is slow.
  const bool single = std::ranges::all_of(f.workers, [](const auto& worker) { return worker.data_rank == 0; });
  const auto longest = static_cast<std::size_t>(std::ranges::max_element(f.stage_factor) - f.stage_factor.begin());
  const bool in_the_middle = longest > 0 && longest + 1 < f.stage_factor.size();
  if (f.without_slow_workers > 0.0) found.push_back(slow_workers(f));
  if (f.without_uneven_stages > 0.0) {
    Finding finding = uneven_stages(f);
    if (single && in_the_middle) finding.cause = Cause::kSlowRank, finding.confidence = 0.6;
    found.push_back(std::move(finding));
  }
  if (f.without_uneven_batches > 0.0) found.push_back(uneven_batches(f));
  return found;
}

}  // namespace lockstep::diagnose
