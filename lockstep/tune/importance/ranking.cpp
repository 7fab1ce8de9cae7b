// Posterior of the costs of reverting knobs, and the answer to "which three".
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <random>

#include "lockstep/base/error.h"
#include "lockstep/tune/importance/importance.h"

namespace lockstep::tune {
namespace {

// How far a configuration may deviate from the model, in the logarithm; with their prior weights.
struct Deviation {
  double size;
  double weight;
};
constexpr std::array kDeviations{Deviation{0.002, 1.0}, Deviation{0.008, 1.0}, Deviation{0.016, 1.0},
                                 Deviation{0.03, 0.7},  Deviation{0.06, 0.4},  Deviation{0.2, 0.2}};
constexpr int kSpreadNodes = 9;

// Chi-square quantile by Wilson and Hilferty (1931), good to a percent from one degree of freedom on in this range.
double chi_square_quantile(double p, double df) {
  const double a = 2 / (9 * df);
  const double root = 1 - a + normal_quantile(p) * std::sqrt(a);
  return df * std::max(1e-3, root * root * root);
}

// A normal distribution over the points.
struct Gaussian {
  std::vector<double> mean;
  Matrix factor;            // Cholesky of the covariance
  double log_evidence = 0;  // of the launches
};

struct FreshMeans {
  std::vector<std::size_t> point;
  std::vector<double> mean;
  std::vector<double> launches;
};

FreshMeans fresh_means(std::span<const std::vector<double>> log_launches) {
  FreshMeans fresh;
  for (std::size_t i = 0; i < log_launches.size(); ++i) {
    const auto& logs = log_launches[i];
    if (logs.empty()) continue;
    fresh.point.push_back(i);
    fresh.mean.push_back(std::accumulate(logs.begin(), logs.end(), 0.0) / static_cast<double>(logs.size()));
    fresh.launches.push_back(static_cast<double>(logs.size()));
  }
  return fresh;
}

// `covariance` is the belief's before the launches.
Gaussian condition(const std::vector<double>& mean, const Matrix& covariance, const FreshMeans& fresh,
                   double launch_variance) {
  const std::size_t m = mean.size(), n = fresh.point.size();
  Matrix sum(n);
  for (std::size_t r = 0; r < n; ++r)
    for (std::size_t c = 0; c < n; ++c)
      sum(r, c) = covariance(fresh.point[r], fresh.point[c]) + (r == c ? launch_variance / fresh.launches[r] : 0);
  LOCKSTEP_ASSERT(cholesky_in_place(sum), "the covariance of the fresh launches is positive definite");
  std::vector<double> residual(n);
  for (std::size_t r = 0; r < n; ++r) residual[r] = fresh.mean[r] - mean[fresh.point[r]];
  solve_lower(sum, residual);
  Gaussian result{mean, Matrix(m), -0.5 * log_determinant_from_cholesky(sum)};
  for (const double z : residual) result.log_evidence -= 0.5 * z * z;
  std::vector<std::vector<double>> half(m, std::vector<double>(n));
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t r = 0; r < n; ++r) half[i][r] = covariance(i, fresh.point[r]);
    solve_lower(sum, half[i]);
    for (std::size_t r = 0; r < n; ++r) result.mean[i] += half[i][r] * residual[r];
    for (std::size_t j = 0; j <= i; ++j) {
      double value = covariance(i, j) + (i == j ? 1e-10 : 0);
      for (std::size_t r = 0; r < n; ++r) value -= half[i][r] * half[j][r];
      result.factor(i, j) = result.factor(j, i) = value;
    }
  }
  LOCKSTEP_ASSERT(cholesky_in_place(result.factor), "the posterior covariance is positive definite");
  return result;
}

// The belief before fresh launches: the model's, or nothing worth mentioning.
Surrogate::Joint belief_before(const Surrogate::Joint* model, const FreshMeans& fresh, std::size_t points) {
  if (model != nullptr) return *model;
  Surrogate::Joint vague{std::vector<double>(points), Matrix(points)};
  const double centre = fresh.mean.empty() ? 0
                                           : std::accumulate(fresh.mean.begin(), fresh.mean.end(), 0.0) /
                                                 static_cast<double>(fresh.mean.size());
  for (std::size_t i = 0; i < points; ++i) {
    vague.mean[i] = centre;
    vague.covariance(i, i) = 4;
  }
  return vague;
}

// Weighted components: deviations x nodes of the launch variance.
std::vector<std::pair<double, Gaussian>> components(const Surrogate::Joint* model, const FreshMeans& fresh,
                                                    std::size_t points, const PooledSpread& spread) {
  const Surrogate::Joint belief = belief_before(model, fresh, points);
  std::vector<std::pair<double, Gaussian>> all;
  double highest = -1e300;
  for (const Deviation& deviation : kDeviations) {
    if (model == nullptr && deviation.size != kDeviations.back().size) continue;
    Matrix covariance = belief.covariance;
    for (std::size_t i = 0; i < points; ++i) covariance(i, i) += deviation.size * deviation.size;
    for (int node = 0; node < kSpreadNodes; ++node) {
      const double df = std::max(spread.degrees_of_freedom, 1.0);
      const double launch_variance = spread.variance * df / chi_square_quantile((node + 0.5) / kSpreadNodes, df);
      Gaussian gaussian = condition(belief.mean, covariance, fresh, std::max(launch_variance, 1e-10));
      gaussian.log_evidence += std::log(deviation.weight);
      highest = std::max(highest, gaussian.log_evidence);
      all.emplace_back(0, std::move(gaussian));
    }
  }
  double sum = 0;
  for (auto& [weight, gaussian] : all) sum += weight = std::exp(gaussian.log_evidence - highest);
  for (auto& [weight, gaussian] : all) weight /= sum;
  return all;
}

// One answer and how often it was right.
struct Answer {
  std::vector<std::size_t> top;
  std::vector<std::size_t> tied;
  double right = 0;
};

// All answers over the first `candidates` knobs (indices into an order by mean cost). Fewer than three are an answer
// only where other knobs that cost nothing may take the places left.
std::vector<Answer> possible_answers(std::size_t candidates, std::size_t free_knobs) {
  std::vector<Answer> answers;
  for (unsigned set = 0; set < 1u << candidates; ++set) {
    std::vector<std::size_t> members;
    for (std::size_t i = 0; i < candidates; ++i)
      if ((set >> i & 1u) != 0) members.push_back(i);
    if (members.size() + std::min<std::size_t>(free_knobs, 3) >= 3 && members.size() <= 3)
      answers.push_back({members, {}});
    if (members.size() != 4) continue;
    for (unsigned ties = 0; ties < 16; ++ties) {
      Answer answer;
      for (std::size_t i = 0; i < 4; ++i) ((ties >> i & 1u) != 0 ? answer.tied : answer.top).push_back(members[i]);
      if (answer.tied.size() >= 2) answers.push_back(std::move(answer));
    }
  }
  return answers;
}

// Costs of one draw, which of them are among the three highest, and how many those are (others cost nothing).
struct Truth {
  std::vector<double> costs;
  std::vector<char> in_top;
  std::size_t named = 0;
};

bool is_right(const Answer& answer, const Truth& truth) {
  for (const std::size_t i : answer.top)
    if (truth.in_top[i] == 0) return false;
  if (answer.tied.empty()) return answer.top.size() == truth.named;
  double low = 1e300, high = -1e300;
  std::size_t belonging = answer.top.size();
  for (const std::size_t i : answer.tied) {
    low = std::min(low, truth.costs[i]);
    high = std::max(high, truth.costs[i]);
    belonging += truth.in_top[i] != 0 ? 1 : 0;
  }
  return belonging == truth.named && high - low < kTiePoints;
}

// Ranks the costs of a draw. Equal ones (two reverts that give the same configuration) are ranked in random order.
void rank(Truth& truth, std::size_t free_knobs, bool forward) {
  std::vector<std::size_t> order(truth.costs.size());
  std::iota(order.begin(), order.end(), 0);
  const std::size_t three = std::min<std::size_t>(3, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(three), order.end(),
                    [&](std::size_t a, std::size_t b) {
                      return truth.costs[a] != truth.costs[b] ? truth.costs[a] > truth.costs[b]
                                                              : (forward ? a < b : a > b);
                    });
  std::fill(truth.in_top.begin(), truth.in_top.end(), 0);
  truth.named = 0;
  for (std::size_t i = 0; i < three; ++i) {
    // Gains come after what costs nothing.
    if (truth.costs[order[i]] < 0 && truth.named + free_knobs >= 3) break;
    truth.in_top[order[i]] = 1;
    ++truth.named;
  }
}

}  // namespace

Draws posterior_draws(const Surrogate::Joint* model, std::span<const std::vector<double>> log_launches,
                      const PooledSpread& spread, std::size_t draws, std::uint64_t seed) {
  const std::size_t points = log_launches.size();
  const auto mixture = components(model, fresh_means(log_launches), points, spread);
  Random random(seed);
  std::normal_distribution<double> normal;
  Draws result{points, {}};
  result.values.reserve(draws * points);
  std::vector<double> z(points);
  // Each component gets its share of the draws; what rounding leaves over goes by accumulated weight.
  double accumulated = 0;
  for (const auto& [weight, gaussian] : mixture) {
    accumulated += weight;
    const auto until = static_cast<std::size_t>(std::llround(accumulated * static_cast<double>(draws)));
    while (result.count() < until) {
      for (double& value : z) value = normal(random);
      for (std::size_t i = 0; i < points; ++i) {
        double value = gaussian.mean[i];
        for (std::size_t j = 0; j <= i; ++j) value += gaussian.factor(i, j) * z[j];
        result.values.push_back(value);
      }
    }
  }
  return result;
}

TopKnobs choose_top(const Draws& costs, std::size_t free_knobs) {
  constexpr std::size_t kMostCandidates = 8;
  constexpr double kWorthATie = 0.01;
  const std::size_t knobs = costs.points;
  std::vector<double> mean(knobs, 0.0);
  for (std::size_t draw = 0; draw < costs.count(); ++draw)
    for (std::size_t i = 0; i < knobs; ++i) mean[i] += costs[draw][i] / static_cast<double>(costs.count());
  std::vector<std::size_t> order(knobs);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return mean[a] > mean[b]; });

  const std::size_t candidates = std::min(knobs, kMostCandidates);
  if (candidates + free_knobs < 3) free_knobs = 3 - candidates;  // fewer than three knobs in all
  std::vector<Answer> answers = possible_answers(candidates, free_knobs);
  Truth truth{std::vector<double>(candidates), std::vector<char>(candidates), 0};
  for (std::size_t draw = 0; draw < costs.count(); ++draw) {
    for (std::size_t i = 0; i < candidates; ++i) truth.costs[i] = costs[draw][order[i]];
    rank(truth, free_knobs, draw % 2 == 0);
    for (Answer& answer : answers) answer.right += is_right(answer, truth) ? 1 : 0;
  }
  const Answer* best = nullptr;
  double best_score = -1;
  for (const Answer& answer : answers) {
    // A wider tie says less: it must be worth it.
    const double score = answer.right / static_cast<double>(costs.count()) -
                         (answer.tied.empty() ? 0 : kWorthATie * static_cast<double>(answer.tied.size() - 1));
    if (score > best_score) {
      best_score = score;
      best = &answer;
    }
  }
  TopKnobs result;
  if (best == nullptr || costs.count() == 0) return result;
  result.probability = best->right / static_cast<double>(costs.count());
  for (const std::size_t i : best->top) result.top.push_back(order[i]);
  for (const std::size_t i : best->tied) result.tied.push_back(order[i]);
  return result;
}

}  // namespace lockstep::tune
