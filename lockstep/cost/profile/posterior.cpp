#include "lockstep/cost/profile/posterior.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <numeric>

namespace lockstep::cost {
namespace {

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;

constexpr double kStep = 1e-3;           // of the logarithm, for derivatives
constexpr int kIterations = 6;           // of linearisation
constexpr double kLongestStep = 0.5;     // of one of them, of a logarithm
constexpr double kMostPriorScale = 2.0;  // on the spreads of constant_table()
// One run in twenty is not an ordinary one, and is then anywhere within a factor of thirty.
constexpr double kOutlierShare = 0.05;
constexpr double kOutlierDensity = 1 / 6.8;
constexpr double kLeastWeight = 1e-6;
// However little is known of a stack: its ordinary runs are within a factor of two of others built like it.
constexpr double kWidestOrdinary = 0.3;

// Standard deviations of what the others leave open by which one run moves what is expected (Huber 1964).
constexpr double kFurthestPull = 1.3;

double dot(const Vector& a, const Vector& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

// Solves the symmetric positive definite A x = b by Cholesky; A is small.
Vector solve(Matrix a, Vector b) {
  const std::size_t n = b.size();
  for (std::size_t j = 0; j < n; ++j) {
    for (std::size_t i = j; i < n; ++i) {
      double sum = a[i][j];
      for (std::size_t k = 0; k < j; ++k) sum -= a[i][k] * a[j][k];
      a[i][j] = i == j ? std::sqrt(std::max(sum, 1e-14)) : sum / a[j][j];
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < i; ++k) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t k = i + 1; k < n; ++k) b[i] -= a[k][i] * b[k];
    b[i] /= a[i][i];
  }
  return b;
}

// One measured figure.
struct Figure {
  std::size_t run = 0;
  bool memory = false;
  double log_measured = 0;
  double noise = 0;   // standard deviation
  double weight = 1;  // probability that it is of an ordinary run
  double limit = 0;   // variance beside `noise`: what keeps it from pulling further than kFurthestPull
  double error = 0;   // log(measured / predicted) at the offsets
  Vector slope;       // of log(predicted), by parameter
};

bool usable(double value) { return std::isfinite(value) && value > 0; }

double log_of(const RunFigures& figures, bool memory) { return std::log(memory ? figures.bytes : figures.seconds); }

}  // namespace

struct Posterior::Update {
  const Profile& prior;
  std::vector<ObservedRun> runs;
  std::vector<RunFigures> first;  // under the prior
  std::vector<Figure> figures;
  Vector offsets, variance;

  Update(const Profile& profile, const std::vector<ObservedRun>& given) : prior(profile) {
    for (const ObservedRun& run : given) {
      if (runs.size() < kMostRuns) add(run);
    }
    const std::vector<ProfileParameter> parameters = parameters_of(prior);
    offsets.assign(parameters.size(), 0.0);
    for (const ProfileParameter& parameter : parameters) variance.push_back(parameter.spread * parameter.spread);
  }

  void add(const ObservedRun& run) {
    RunFigures figures_now;
    try {
      figures_now = run.predict(prior);
    } catch (const std::exception&) {
      return;  // what this profile cannot price says nothing about it
    }
    if (!usable(figures_now.seconds)) return;
    const auto take = [&](double measured, double predicted, double sigma, double usual, bool memory) {
      if (!usable(measured) || !usable(predicted)) return;
      // A stack that is known within 2% is not made worse by runs that are said to scatter by 5%.
      const double noise = std::hypot(std::min(usual, 0.7 * sigma), run.spread);
      figures.push_back({.run = runs.size(), .memory = memory, .log_measured = std::log(measured), .noise = noise});
    };
    take(run.seconds, figures_now.seconds, figures_now.time_sigma, kRunSigma, false);
    take(run.bytes, figures_now.bytes, figures_now.memory_sigma, kRunMemorySigma, true);
    runs.push_back(run);
    first.push_back(figures_now);
  }

  void linearise() {
    const Profile here = moved(prior, offsets);
    std::vector<RunFigures> base(runs.size());
    for (std::size_t i = 0; i < runs.size(); ++i) base[i] = runs[i].predict(here);
    for (Figure& figure : figures) {
      figure.error = figure.log_measured - log_of(base[figure.run], figure.memory);
      figure.slope.assign(offsets.size(), 0.0);
    }
    for (std::size_t j = 0; j < offsets.size(); ++j) {
      Vector ahead = offsets;
      ahead[j] += kStep;
      const Profile there = moved(prior, ahead);
      std::vector<RunFigures> changed(runs.size());
      for (std::size_t i = 0; i < runs.size(); ++i) changed[i] = runs[i].predict(there);
      for (Figure& figure : figures) {
        const double change = log_of(changed[figure.run], figure.memory) - log_of(base[figure.run], figure.memory);
        figure.slope[j] = std::isfinite(change) ? change / kStep : 0.0;
      }
    }
  }

  // The spreads of the table say how constants differ relative to each other; the profile's residuals say how well it
  // is known. Together: variances under which its prediction of these runs is as uncertain as it says.
  void scale_prior(bool memory) {
    double wanted = 0;
    double given = 0;
    const std::vector<ProfileParameter> parameters = parameters_of(prior);
    for (const Figure& figure : figures) {
      if (figure.memory != memory) continue;
      const RunFigures& said = first[figure.run];
      const double sigma = memory ? said.memory_sigma : said.time_sigma;
      const double usual = memory ? kRunMemorySigma : kRunSigma;
      const double noise = std::min(usual, 0.7 * sigma);
      wanted += sigma * sigma - noise * noise;
      for (std::size_t j = 0; j < variance.size(); ++j) {
        if (parameters[j].is_memory == memory) given += figure.slope[j] * figure.slope[j] * variance[j];
      }
    }
    if (given <= 0) return;
    const double scale = std::min(wanted / given, kMostPriorScale * kMostPriorScale);
    for (std::size_t j = 0; j < variance.size(); ++j) {
      if (parameters[j].is_memory == memory) variance[j] *= scale;
    }
  }

  double covariance(const Figure& a, const Figure& b) const {
    double sum = 0;
    for (std::size_t j = 0; j < variance.size(); ++j) sum += a.slope[j] * variance[j] * b.slope[j];
    return sum;
  }

  // A run that is an ordinary one with probability w moves the mean by w of what it would alone: the mixture's mean.
  double noise_of(const Figure& figure) const {
    const double own = figure.noise * figure.noise;
    return own + figure.limit + (1 / std::max(figure.weight, kLeastWeight) - 1) * (covariance(figure, figure) + own);
  }

  // log(measured / predicted by the prior), as the linearisation at the offsets has it.
  double target(const Figure& figure) const { return figure.error + dot(figure.slope, offsets); }

  Matrix gram() const {
    Matrix k(figures.size(), Vector(figures.size()));
    for (std::size_t a = 0; a < figures.size(); ++a) {
      for (std::size_t b = 0; b <= a; ++b) k[a][b] = k[b][a] = covariance(figures[a], figures[b]);
      k[a][a] += noise_of(figures[a]);
    }
    return k;
  }

  // Each figure against what the others and the prior expect of it.
  void weigh() {
    const Matrix full = gram();
    std::vector<double> weights, limits;
    for (std::size_t i = 0; i < figures.size(); ++i) {
      Matrix others;
      Vector targets, cross;
      for (std::size_t a = 0; a < figures.size(); ++a) {
        if (a == i) continue;
        Vector row;
        for (std::size_t b = 0; b < figures.size(); ++b) {
          if (b != i) row.push_back(full[a][b]);
        }
        others.push_back(std::move(row));
        targets.push_back(target(figures[a]));
        cross.push_back(full[a][i]);
      }
      const Figure& figure = figures[i];
      double mean = 0;
      double variance_left = covariance(figure, figure) + figure.noise * figure.noise;
      if (!targets.empty()) {
        mean = dot(cross, solve(others, targets));
        variance_left -= dot(cross, solve(others, cross));
      }
      variance_left = std::clamp(variance_left, figure.noise * figure.noise, kWidestOrdinary * kWidestOrdinary);
      const double away = target(figure) - mean;
      const double ordinary = (1 - kOutlierShare) * std::exp(-0.5 * away * away / variance_left) /
                              std::sqrt(2 * 3.14159265358979 * variance_left);
      weights.push_back(ordinary / (ordinary + kOutlierShare * kOutlierDensity));
      const double unknown = std::max(0.0, variance_left - figure.noise * figure.noise);
      limits.push_back(unknown * std::max(0.0, std::abs(away) / (kFurthestPull * std::sqrt(variance_left)) - 1));
    }
    for (std::size_t i = 0; i < figures.size(); ++i) {
      figures[i].weight = weights[i];
      figures[i].limit = limits[i];
    }
  }

  void step() {
    Vector targets;
    for (const Figure& figure : figures) targets.push_back(target(figure));
    const Vector pull = solve(gram(), targets);
    for (std::size_t j = 0; j < offsets.size(); ++j) {
      double wanted = 0;
      for (std::size_t i = 0; i < figures.size(); ++i) wanted += variance[j] * figures[i].slope[j] * pull[i];
      offsets[j] += std::clamp(wanted - offsets[j], -kLongestStep, kLongestStep);
    }
  }

  void run() {
    linearise();
    scale_prior(false);
    scale_prior(true);
    for (int i = 0; i < kIterations; ++i) {
      for (int round = 0; round < 3; ++round) weigh();
      step();
      linearise();
    }
  }

  Matrix left() const {
    const std::size_t p = offsets.size();
    Matrix covariance_left(p, Vector(p));
    for (std::size_t j = 0; j < p; ++j) covariance_left[j][j] = variance[j];
    if (figures.empty()) return covariance_left;
    const Matrix k = gram();
    for (std::size_t a = 0; a < p; ++a) {
      Vector column;
      for (const Figure& figure : figures) column.push_back(figure.slope[a] * variance[a]);
      const Vector solved = solve(k, column);
      for (std::size_t b = 0; b < p; ++b) {
        double sum = 0;
        for (std::size_t i = 0; i < figures.size(); ++i) sum += figures[i].slope[b] * variance[b] * solved[i];
        covariance_left[a][b] -= sum;
      }
    }
    return covariance_left;
  }
};

namespace {

double quadratic(const Vector& slope, const Matrix& covariance) {
  double sum = 0;
  for (std::size_t a = 0; a < slope.size(); ++a) {
    if (slope[a] != 0) sum += slope[a] * dot(covariance[a], slope);
  }
  return std::max(0.0, sum);
}

// How alike the errors of two runs of one stack are, before anything is known of it.
constexpr double kAlike = 0.8;

// What `runs` ordinary runs leave of a stack's standard deviation for the next one.
double narrowed(double sigma, double run_sigma, double runs) {
  const double own = std::min(run_sigma, 0.7 * sigma);
  const double shared = kAlike * std::max(0.0, sigma * sigma - own * own);
  const double each = own * own + (1 - kAlike) * std::max(0.0, sigma * sigma - own * own);
  return std::sqrt(sigma * sigma - shared * runs * shared / (runs * shared + each + 1e-12));
}

}  // namespace

Posterior::Posterior(Profile prior, const std::vector<ObservedRun>& runs) : prior_(std::move(prior)), profile_(prior_) {
  Update update(prior_, runs);
  if (!update.figures.empty()) update.run();
  take_over(update);
}

void Posterior::take_over(const Update& update) {
  offsets_ = update.offsets;
  prior_variance_ = update.variance;
  covariance_ = update.left();
  profile_ = moved(prior_, offsets_);
  double time_runs = 0;
  double memory_runs = 0;
  for (std::size_t i = 0; i < update.runs.size(); ++i) {
    RunVerdict verdict{.name = update.runs[i].name};
    for (const Figure& figure : update.figures) {
      if (figure.run != i) continue;
      const double before = std::exp(figure.log_measured - log_of(update.first[i], figure.memory));
      (figure.memory ? verdict.memory_before : verdict.before) = before;
      (figure.memory ? verdict.memory_after : verdict.after) = std::exp(figure.error);
      (figure.memory ? verdict.memory_weight : verdict.weight) = figure.weight;
      (figure.memory ? memory_runs : time_runs) += figure.weight;
    }
    verdicts_.push_back(std::move(verdict));
  }
  used_ = update.runs.size();
  if (!profile_.fitted || used_ == 0) return;
  Residuals& residuals = profile_.fitted->residuals;
  const double narrower = narrowed(residuals.time, kRunSigma, time_runs) / std::max(residuals.time, 1e-9);
  residuals.time *= narrower;
  residuals.time_exposed *= narrower;
  residuals.memory = narrowed(residuals.memory, kRunMemorySigma, memory_runs);
}

std::vector<ChangedConstant> Posterior::changes() const {
  constexpr double kWorthSaying = 0.02;
  const std::vector<ProfileParameter> parameters = parameters_of(prior_);
  std::vector<ChangedConstant> changes;
  for (std::size_t j = 0; j < offsets_.size(); ++j) {
    const double informed = prior_variance_[j] > 0 ? 1 - covariance_[j][j] / prior_variance_[j] : 0;
    if (informed < kWorthSaying && std::abs(offsets_[j]) < kWorthSaying) continue;
    changes.push_back({parameters[j].name, std::exp(offsets_[j]), informed});
  }
  std::stable_sort(changes.begin(), changes.end(),
                   [](const ChangedConstant& a, const ChangedConstant& b) { return a.informed > b.informed; });
  return changes;
}

PosteriorSpread Posterior::spread_of(const std::function<RunFigures(const Profile&)>& predict) const {
  const RunFigures said = predict(prior_);
  const RunFigures base = predict(profile_);
  PosteriorSpread spread{.time = said.time_sigma, .memory = said.memory_sigma};
  if (used_ == 0) return spread;
  Vector time(offsets_.size()), memory(offsets_.size());
  for (std::size_t j = 0; j < offsets_.size(); ++j) {
    Vector ahead = offsets_;
    ahead[j] += kStep;
    const RunFigures there = predict(moved(prior_, ahead));
    time[j] = std::log(there.seconds / base.seconds) / kStep;
    if (usable(base.bytes)) memory[j] = std::log(there.bytes / base.bytes) / kStep;
  }
  const double noise = std::min(kRunSigma, 0.7 * said.time_sigma);
  const double memory_noise = std::min(kRunMemorySigma, 0.7 * said.memory_sigma);
  // Never wider than without the runs.
  spread.time = std::min(said.time_sigma, std::hypot(noise, std::sqrt(quadratic(time, covariance_))));
  spread.memory = std::min(said.memory_sigma, std::hypot(memory_noise, std::sqrt(quadratic(memory, covariance_))));
  return spread;
}

}  // namespace lockstep::cost
