#include "lockstep/report/study/curves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "lockstep/base/text.h"
#include "lockstep/report/recipe/words.h"
#include "lockstep/tune/study/evidence.h"

namespace lockstep::report {
namespace {

using tune::Config;
using tune::Knob;
using tune::Space;
using tune::Value;

constexpr std::size_t kFewLevels = 9;
constexpr double kTwoSided = 1.96;

Value number_value(const Knob& knob, double number) {
  if (knob.kind == tune::KnobKind::kInteger) return static_cast<std::int64_t>(std::llround(number));
  return number;
}

// All values, or `most` evenly spread ones.
std::vector<Value> values_of(const Knob& knob, std::size_t most) {
  std::vector<Value> values;
  if (knob.kind == tune::KnobKind::kChoice) {
    const std::size_t count = knob.choices.size();
    if (count <= most || !knob.ordered) return knob.choices;
    for (std::size_t i = 0; i < most; ++i) values.push_back(knob.choices[i * (count - 1) / (most - 1)]);
    return values;
  }
  const bool whole = knob.kind == tune::KnobKind::kInteger;
  const std::size_t steps = whole ? std::min(most, static_cast<std::size_t>(knob.high - knob.low) + 1) : most;
  for (std::size_t i = 0; i < steps; ++i) {
    const double share = steps == 1 ? 0 : static_cast<double>(i) / static_cast<double>(steps - 1);
    const bool ratios = knob.log && knob.low > 0;
    const double number =
        ratios ? knob.low * std::pow(knob.high / knob.low, share) : knob.low + share * (knob.high - knob.low);
    const Value value = number_value(knob, number);
    if (values.empty() || !(values.back() == value)) values.push_back(value);
  }
  return values;
}

double to_share(const Knob& knob, double coordinate) {
  if (knob.ordered) return coordinate;
  const auto last = static_cast<double>(knob.choices.empty() ? 0 : knob.choices.size() - 1);
  return last > 0 ? coordinate / last : 0.5;
}

double share_of_value(const Space& space, std::size_t knob, const Value& value) {
  Config config = space.default_config();
  config.values[knob] = value;
  return to_share(space.knobs()[knob], space.coordinates(config)[knob]);
}

// `best` with one knob at `value`, and whatever that forces; nullopt when no neighbour has it.
std::optional<Config> moved(const Space& space, const Config& best, const std::vector<Config>& neighbours,
                            std::size_t knob, const Value& value) {
  Config config = best;
  config.values[knob] = value;
  if (space.is_valid(config)) return config;
  for (const Config& neighbour : neighbours)
    if (neighbour.values[knob] == value) return neighbour;
  return std::nullopt;
}

std::size_t measured_trials(const StudyView& study) {
  return static_cast<std::size_t>(
      std::count_if(study.trials.begin(), study.trials.end(), [](const tune::Trial& t) { return tune::measured(t); }));
}

double as_percent(double log_ratio) { return std::exp(log_ratio) * 100; }

KnobCurve curve_of(const StudyView& study, const tune::Surrogate& model, const std::vector<Config>& neighbours,
                   std::size_t knob) {
  const Space& space = study.space;
  const Config& best = study.conclusion.best->config;
  KnobCurve curve;
  curve.axis = knob_axis(space, knob);
  curve.best_share = share_of_value(space, knob, best.values[knob]);
  std::vector<std::vector<double>> points{space.coordinates(best)};
  std::vector<Value> values =
      values_of(space.knobs()[knob], space.knobs()[knob].kind == tune::KnobKind::kReal ? 17 : 13);
  std::erase_if(values, [&](const Value& value) {
    const auto config = moved(space, best, neighbours, knob, value);
    if (config) points.push_back(space.coordinates(*config));
    return !config;
  });
  const tune::Surrogate::Joint joint = model.predict_jointly(points);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t p = i + 1;
    const double difference = joint.mean[p] - joint.mean[0];
    const double variance = joint.covariance(p, p) + joint.covariance(0, 0) - 2 * joint.covariance(p, 0);
    const double half = kTwoSided * std::sqrt(std::max(0.0, variance));
    curve.levels.push_back({share_of_value(space, knob, values[i]), shown_value(values[i]), as_percent(difference),
                            as_percent(difference - half), as_percent(difference + half)});
  }
  std::sort(curve.levels.begin(), curve.levels.end(), [](const auto& a, const auto& b) { return a.share < b.share; });
  for (const tune::Trial& trial : study.trials) {
    if (!tune::measured(trial) || !tune::is_active(trial.config.values[knob])) continue;
    curve.seen.push_back({share_of_value(space, knob, trial.config.values[knob]),
                          as_percent(std::log(trial.throughput) - joint.mean[0]), trial.number});
  }
  return curve;
}

// Mutual information between a knob's level (in at most six bins) and failure, over the trials where it is active.
double information(const StudyView& study, std::size_t knob) {
  std::map<int, std::pair<double, double>> bins;  // failed, ran
  double failed = 0, ran = 0;
  for (const tune::Trial& trial : study.trials) {
    const double share = axis_shares(study.space, trial.config)[knob];
    if (!std::isfinite(share)) continue;
    const bool few = !study.space.knobs()[knob].ordered;
    auto& bin = bins[few ? static_cast<int>(std::lround(share * 1000)) : std::min(5, static_cast<int>(share * 6))];
    (tune::measured(trial) ? bin.second : bin.first) += 1;
    (tune::measured(trial) ? ran : failed) += 1;
  }
  const double total = failed + ran;
  if (failed == 0 || ran == 0) return 0;
  double sum = 0;
  for (const auto& [bin, counts] : bins) {
    const double here = counts.first + counts.second;
    if (counts.first > 0) sum += counts.first / total * std::log(counts.first * total / (here * failed));
    if (counts.second > 0) sum += counts.second / total * std::log(counts.second * total / (here * ran));
  }
  return sum - static_cast<double>(bins.size() - 1) / (2 * total);  // many bins explain something by chance
}

}  // namespace

KnobAxis knob_axis(const Space& space, std::size_t knob) {
  const Knob& what = space.knobs()[knob];
  KnobAxis axis{knob, printable(what.name, 40), what.ordered, {}};
  const std::vector<Value> all = values_of(what, kFewLevels + 1);
  const std::vector<Value> shown = all.size() <= kFewLevels ? all : values_of(what, 5);
  for (const Value& value : shown) {
    const auto* real = std::get_if<double>(&value);
    axis.ticks.push_back(
        {share_of_value(space, knob, value), real != nullptr ? short_number(*real) : shown_value(value)});
  }
  return axis;
}

std::vector<double> axis_shares(const Space& space, const Config& config) {
  std::vector<double> shares = space.coordinates(config);
  for (std::size_t i = 0; i < shares.size(); ++i) shares[i] = to_share(space.knobs()[i], shares[i]);
  return shares;
}

std::vector<KnobCurve> knob_curves(const StudyView& study) {
  std::vector<KnobCurve> curves;
  if (!study.conclusion.best || measured_trials(study) < 3) return curves;
  const Config& best = study.conclusion.best->config;
  const tune::Surrogate model = tune::fit_all(study.space, nullptr, study.trials);
  const std::vector<Config> neighbours = study.space.neighbours(best);
  std::vector<std::size_t> order;
  for (const tune::KnobImportance& entry : study.conclusion.importance)
    if (const auto knob = study.space.find(entry.knob)) order.push_back(*knob);
  for (std::size_t i = 0; i < study.space.size(); ++i)
    if (std::find(order.begin(), order.end(), i) == order.end()) order.push_back(i);
  for (const std::size_t knob : order)
    if (tune::is_active(best.values[knob])) curves.push_back(curve_of(study, model, neighbours, knob));
  return curves;
}

std::vector<Leader> leaders_over_time(const StudyView& study) {
  std::vector<Leader> leaders;
  if (measured_trials(study) < 3) return leaders;
  const tune::Surrogate model = tune::fit_all(study.space, nullptr, study.trials);
  Leader leader;
  for (const tune::Trial& trial : study.trials) {
    if (tune::measured(trial)) {
      const tune::Posterior seen = model.predict(study.space.coordinates(trial.config));
      if (leaders.empty() || std::exp(seen.mean) > leader.estimate) {
        const double half = kTwoSided * std::sqrt(std::max(0.0, seen.variance));
        leader = {trial.number, std::exp(seen.mean), std::exp(seen.mean - half), std::exp(seen.mean + half)};
      }
    }
    if (leader.estimate <= 0) continue;
    leader.trial = trial.number;
    leaders.push_back(leader);
  }
  return leaders;
}

std::vector<std::size_t> knobs_of_failure(const StudyView& study) {
  const bool any = std::any_of(study.trials.begin(), study.trials.end(),
                               [](const tune::Trial& trial) { return !tune::measured(trial); });
  if (!any || study.space.size() < 2) return {};
  std::vector<std::size_t> order(study.space.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<double> scores;
  scores.reserve(order.size());
  for (const std::size_t knob : order) scores.push_back(information(study, knob));
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  return {order[0], order[1]};
}

}  // namespace lockstep::report
