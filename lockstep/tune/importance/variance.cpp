// Functional analysis of variance over the space, from draws of the function.
//
// Sums over the space are estimated twice: for the posterior mean over many configurations, and for the difference of
// each draw from that mean over few (joint draws cost the cube of their number). The difference is small where the
// model knows the function, so few are enough.
#include <algorithm>
#include <cmath>
#include <random>

#include "lockstep/tune/importance/importance.h"
#include "lockstep/tune/importance/space.h"

namespace lockstep::tune {
namespace {

constexpr std::size_t kRowsOfMean = 20;    // rows per knob for the mean
constexpr std::size_t kJointPoints = 360;  // for the draws, all knobs together
// What was never measured, as deviations over that of the function: a main effect at a level never seen, the part of it
// that remains however often the level was seen near the winner, and interactions far from it.
constexpr double kUnseenEffect = 1.0;
constexpr double kLeastIgnorance = 0.3;
constexpr double kUnseenInteraction = 0.2;

// Values of the function at the points of rows, in their order.
template <class Values>
Moments row_moments(const Row& row, const Values& values) {
  Moments moments;
  for (std::size_t i = 0; i < row.size(); ++i) moments.add(row[i].at.runs, values(i));
  return moments;
}

// Mean of the variance within a row: what the knob changes while all others stay.
template <class Values>
double total_of(std::span<const Row> rows, const Values& values) {
  Moments within;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const Moments moments = row_moments(rows[r], [&](std::size_t i) { return values(r, i); });
    // A row is found as often as it has members, so its weight is that of the member it was drawn by.
    if (moments.weight > 0) within.add(moments.weight / static_cast<double>(rows[r].size()), moments.variance());
  }
  return within.mean();
}

// Mean by level over rows. A row drawn through any of its members stands for one configuration of the other knobs.
template <class Values>
std::vector<double> level_means(std::span<const Row> rows, std::size_t levels, const Values& values) {
  std::vector<Moments> moments(levels);
  for (std::size_t r = 0; r < rows.size(); ++r)
    for (std::size_t i = 0; i < rows[r].size(); ++i)
      moments[rows[r][i].level].add(rows[r][i].at.runs / static_cast<double>(rows[r].size()), values(r, i));
  std::vector<double> means;
  means.reserve(levels);
  for (const Moments& level : moments) means.push_back(level.mean());
  return means;
}

// Main effect of the mean over the sample: by level (the last one for "inactive"), its weight, and how much of its
// variance is noise of the sample.
struct MainEffect {
  std::vector<double> mean;
  std::vector<double> weight;
  double noise = 0;
};

MainEffect main_effect(const SpaceView& view, std::size_t knob) {
  std::vector<Moments> moments(view.levels(knob) + 1);
  std::vector<double> members(moments.size(), 0.0);
  double all = 0;
  for (const Candidate& candidate : view.sample()) {
    const std::size_t level = view.level_of(knob, candidate.config).value_or(view.levels(knob));
    moments[level].add(candidate.runs, candidate.speed.mean);
    members[level] += 1;
    all += candidate.runs;
  }
  MainEffect effect;
  for (std::size_t i = 0; i < moments.size(); ++i) {
    effect.mean.push_back(moments[i].mean());
    effect.weight.push_back(moments[i].weight / all);
    if (members[i] > 0) effect.noise += effect.weight[i] * moments[i].variance() / members[i];
  }
  return effect;
}

// By level: 1 where no trial measured the level, or one near it. Trials gather around the winner and say little about
// the level elsewhere, so it never falls to nothing.
std::vector<double> ignorance_of(const SpaceView& view, std::size_t knob, std::span<const Trial> history) {
  const std::size_t levels = view.levels(knob);
  std::vector<double> seen(levels, 0.0);
  for (const Trial& trial : history) {
    if (!measured(trial)) continue;
    const auto level = view.level_of(knob, trial.config);
    if (!level) continue;
    seen[*level] += 1;
    if (!view.space().knobs()[knob].ordered) continue;
    if (*level > 0) seen[*level - 1] += 0.5;
    if (*level + 1 < levels) seen[*level + 1] += 0.5;
  }
  std::vector<double> ignorance;
  ignorance.reserve(levels);
  for (const double count : seen) ignorance.push_back(std::max(kLeastIgnorance, 1 / (1 + count)));
  return ignorance;
}

double weighted_variance(std::span<const double> values, std::span<const double> weights) {
  Moments moments;
  for (std::size_t i = 0; i < values.size(); ++i) moments.add(weights[i], values[i]);
  return moments.variance();
}

// Rows of one knob among the joint points.
struct KnobRows {
  std::vector<Row> rows;
  std::vector<std::size_t> start;  // of each row in a draw
};

// Everything the draws need, laid out once.
class Shares {
 public:
  Shares(const Beliefs& beliefs, std::span<const Trial> history, std::uint64_t seed) : view_(beliefs, seed) {
    const std::size_t knobs = view_.space().size();
    std::size_t levels = 0;
    for (std::size_t knob = 0; knob < knobs; ++knob) levels += view_.levels(knob);
    const std::size_t rows = std::max<std::size_t>(2, kJointPoints / std::max<std::size_t>(1, levels));
    for (std::size_t knob = 0; knob < knobs; ++knob) {
      effects_.push_back(main_effect(view_, knob));
      ignorance_.push_back(ignorance_of(view_, knob, history));
      std::vector<Row> many;
      for (std::size_t r = 0; r < kRowsOfMean; ++r) many.push_back(view_.row(knob));
      totals_.push_back(total_of(many, [&](std::size_t r, std::size_t i) { return many[r][i].at.speed.mean; }));
      many.resize(rows);
      joint_.push_back({std::move(many), {}});
    }
    for (KnobRows& knob : joint_)
      for (const Row& row : knob.rows) {
        knob.start.push_back(points_.size());
        for (const RowPoint& point : row) points_.push_back(&point.at);
      }
    for (const Candidate& candidate : view_.sample()) variance_.add(candidate.runs, candidate.speed.mean);
    draws_ = difference_draws(beliefs, points_, seed + 1);
  }

  SpaceView& view() { return view_; }
  std::size_t knobs() const { return joint_.size(); }

  // What may be beyond the model, by knob: main effect by level, variance of interactions.
  struct Doubt {
    std::vector<std::vector<double>> levels;
    std::vector<double> interactions;
  };

  // Variances of one draw, by knob. `doubt` (may be null) is added.
  struct OfDraw {
    double all = 0;
    std::vector<double> main, total;
  };
  OfDraw of_draw(std::span<const double> difference, const Doubt* doubt) const {
    OfDraw result;
    result.all = variance_of(difference);
    double doubted = 0;
    for (std::size_t knob = 0; knob < knobs(); ++knob) {
      const KnobRows& at = joint_[knob];
      const auto delta = [&](std::size_t r, std::size_t i) { return difference[at.start[r] + i]; };
      const auto mean = [&](std::size_t r, std::size_t i) { return at.rows[r][i].at.speed.mean; };
      std::vector<double> effect = effects_[knob].mean;
      const std::vector<double> shift = level_means(at.rows, view_.levels(knob), delta);
      for (std::size_t level = 0; level < shift.size(); ++level) effect[level] += shift[level];
      const double main = weighted_variance(effect, effects_[knob].weight);
      double more = 0;
      if (doubt != nullptr) {
        for (std::size_t level = 0; level < shift.size(); ++level) effect[level] += doubt->levels[knob][level];
        more = weighted_variance(effect, effects_[knob].weight) - main;
        doubted += more;
      }
      result.main.push_back(std::max(0.0, main + more - effects_[knob].noise));
      const double moved = total_of(at.rows, [&](std::size_t r, std::size_t i) { return mean(r, i) + delta(r, i); }) -
                           total_of(at.rows, mean);
      result.total.push_back(std::max({0.0, totals_[knob] + moved + more, result.main.back()}) +
                             (doubt != nullptr ? doubt->interactions[knob] : 0));
    }
    result.all = std::max(1e-12, result.all + doubted);
    return result;
  }

  std::span<const double> draw(std::size_t index) const { return draws_[index]; }
  OfDraw of_mean() const { return of_draw(std::vector<double>(points_.size(), 0.0), nullptr); }

  Doubt doubt(Random& random) const {
    std::normal_distribution<double> normal;
    const double deviation = std::sqrt(variance_.variance());
    Doubt result;
    for (const auto& knob : ignorance_) {
      result.levels.emplace_back();
      for (const double ignorance : knob)
        result.levels.back().push_back(kUnseenEffect * deviation * ignorance * normal(random));
      result.interactions.push_back(std::pow(kUnseenInteraction * deviation * normal(random), 2));
    }
    return result;
  }

 private:
  double variance_of(std::span<const double> difference) const {
    Moments before, after;
    for (std::size_t i = 0; i < points_.size(); ++i) {
      before.add(points_[i]->runs, points_[i]->speed.mean);
      after.add(points_[i]->runs, points_[i]->speed.mean + difference[i]);
    }
    return variance_.variance() * std::max(after.variance(), 1e-12) / std::max(before.variance(), 1e-12);
  }

  SpaceView view_;
  std::vector<MainEffect> effects_;
  std::vector<std::vector<double>> ignorance_;
  std::vector<double> totals_;
  Moments variance_;
  std::vector<KnobRows> joint_;
  std::vector<const Candidate*> points_;
  Draws draws_;
};

// Shares in percent: [draw][knob].
struct ShareDraws {
  explicit ShareDraws(std::size_t knobs) : main{knobs, {}}, total{knobs, {}} {}
  void add(const Shares::OfDraw& of) {
    for (std::size_t knob = 0; knob < main.points; ++knob) {
      main.values.push_back(std::min(100.0, 100 * of.main[knob] / of.all));
      total.values.push_back(std::min(100.0, 100 * of.total[knob] / of.all));
    }
  }
  Draws main, total;
};

// Draws of a variance exceed that of the mean by the uncertainty, so the lower end comes from their spread around
// the mean's; the upper end knows that levels never seen may do anything.
Estimate interval_of(const Draws& plain, const Draws& doubted, const Draws& at_mean, std::size_t knob) {
  Estimate estimate = plain.estimate(knob);
  const double excess = std::max(0.0, estimate.value - at_mean[0][knob]);
  estimate.low = std::max(0.0, estimate.low - excess);
  estimate.high = std::max(estimate.high, doubted.estimate(knob).high);
  estimate.value = std::clamp((estimate.value + at_mean[0][knob]) / 2, estimate.low, estimate.high);
  return estimate;
}

}  // namespace

VarianceShares variance_shares(const Beliefs& beliefs, std::span<const Trial> history, std::uint64_t seed) {
  VarianceShares result;
  const std::size_t knobs = beliefs.space->size();
  result.main.resize(knobs);
  result.total.resize(knobs);
  if (!beliefs.speed) return result;
  Shares shares(beliefs, history, seed);
  Random random(seed + 3);
  ShareDraws plain(knobs), doubted(knobs);
  double variance = 0;
  for (std::size_t draw = 0; draw < kFunctionDraws; ++draw) {
    const Shares::OfDraw of = shares.of_draw(shares.draw(draw), nullptr);
    variance += of.all / static_cast<double>(kFunctionDraws);
    plain.add(of);
    const Shares::Doubt doubt = shares.doubt(random);
    doubted.add(shares.of_draw(shares.draw(draw), &doubt));
  }
  ShareDraws at_mean(knobs);
  at_mean.add(shares.of_mean());
  for (std::size_t knob = 0; knob < knobs; ++knob) {
    result.main[knob] = interval_of(plain.main, doubted.main, at_mean.main, knob);
    result.total[knob] = interval_of(plain.total, doubted.total, at_mean.total, knob);
  }
  result.interactions = interactions_of(beliefs, shares.view(), variance, seed + 2);
  return result;
}

}  // namespace lockstep::tune
