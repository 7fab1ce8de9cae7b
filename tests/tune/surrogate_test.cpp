#include "lockstep/tune/models/surrogate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/tune/models/linear_algebra.h"

namespace lockstep::tune {
namespace {

Space small_space() {
  return Space::parse(
      "knobs:\n"
      "  micro_batch: {choices: [1, 2, 4, 8, 16], default: 1}\n"
      "  num_workers: {int: [0, 8], default: 2}\n"
      "  colour: {choices: [red, green, blue], default: red}\n"
      "  idle: {int: [0, 8], default: 0}\n",
      "surrogate_test");
}

// Additive in the logarithm; `idle` does nothing.
double truth(const std::vector<double>& x) {
  return 8.0 + 0.5 * std::sqrt(x[0]) - 0.3 * (x[1] - 0.6) * (x[1] - 0.6) + (x[2] == 1 ? 0.15 : 0.0);
}

std::vector<Observation> observe(const Space& space, int count, double noise, std::uint64_t seed) {
  Random random(seed);
  std::normal_distribution<double> normal;
  std::vector<Observation> observations;
  for (int i = 0; i < count; ++i) {
    Observation observation;
    observation.coordinates = space.coordinates(space.sample(random));
    observation.log_throughput = truth(observation.coordinates) + noise * normal(random);
    observation.moment = i;
    observations.push_back(observation);
  }
  return observations;
}

TEST(LinearAlgebra, AFactorMultipliesBackAndSolves) {
  Matrix matrix(3);
  const double values[3][3] = {{4, 1, 0.5}, {1, 3, 0.2}, {0.5, 0.2, 2}};
  for (std::size_t r = 0; r < 3; ++r)
    for (std::size_t c = 0; c < 3; ++c) matrix(r, c) = values[r][c];
  Matrix factor = matrix;
  ASSERT_TRUE(cholesky_in_place(factor));
  std::vector<double> x{1, -2, 3};
  solve_cholesky(factor, x);
  const Matrix inverse = inverse_from_cholesky(factor);
  const double b[3] = {1, -2, 3};
  for (std::size_t r = 0; r < 3; ++r) {
    double product = 0, row = 0;
    for (std::size_t c = 0; c < 3; ++c) {
      product += values[r][c] * x[c];
      row += inverse(r, c) * b[c];
    }
    EXPECT_NEAR(product, b[r], 1e-12);
    EXPECT_NEAR(row, x[r], 1e-12);
  }
  EXPECT_NEAR(log_determinant_from_cholesky(factor), std::log(21.29), 1e-9);
}

TEST(LinearAlgebra, AMatrixThatIsNotPositiveDefiniteIsRefused) {
  Matrix matrix(2);
  matrix(0, 0) = 1;
  matrix(1, 0) = matrix(0, 1) = 2;
  matrix(1, 1) = 1;
  EXPECT_FALSE(cholesky_in_place(matrix));
}

TEST(Surrogate, PredictsUnseenConfigurationsWithinAFewPercentAndKnowsIt) {
  const Space space = small_space();
  int inside = 0, total = 0;
  double squares = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const Surrogate model = Surrogate::fit(space, observe(space, 30, 0.03, seed), false);
    Random random(seed + 100);
    for (int i = 0; i < 50; ++i) {
      const std::vector<double> x = space.coordinates(space.sample(random));
      const Posterior posterior = model.predict(x);
      const double error = posterior.mean - truth(x);
      squares += error * error;
      inside += std::fabs(error) < 1.96 * std::sqrt(posterior.variance);
      ++total;
    }
  }
  EXPECT_LT(std::sqrt(squares / total), 0.035);
  EXPECT_GT(inside, total * 0.85);
  EXPECT_LT(inside, total);
}

TEST(Surrogate, LearnsTheNoiseAndWhichKnobDoesNothing) {
  const Space space = small_space();
  const Surrogate model = Surrogate::fit(space, observe(space, 60, 0.03, 7), false);
  EXPECT_NEAR(std::sqrt(model.noise_variance()), 0.03, 0.012);
  const std::vector<double> variances = model.main_variances();
  EXPECT_LT(variances[3], 0.2 * variances[0]);
}

TEST(Surrogate, JointPosteriorHasTheSinglePosteriorsOnItsDiagonal) {
  const Space space = small_space();
  const Surrogate model = Surrogate::fit(space, observe(space, 20, 0.03, 3), false);
  Random random(5);
  const std::vector<std::vector<double>> points{space.coordinates(space.sample(random)),
                                                space.coordinates(space.sample(random))};
  const Surrogate::Joint joint = model.predict_jointly(points);
  for (std::size_t i = 0; i < points.size(); ++i) {
    const Posterior single = model.predict(points[i]);
    EXPECT_NEAR(joint.mean[i], single.mean, 1e-9);
    EXPECT_NEAR(joint.covariance(i, i), single.variance, 1e-9);
  }
}

TEST(Surrogate, APriorThatIsRightHelpsAndOneThatIsWrongIsUnlearned) {
  const Space space = small_space();
  const auto error_with = [&](double factor, bool use) {
    double squares = 0;
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      std::vector<Observation> observations = observe(space, 12, 0.03, seed);
      for (Observation& o : observations) o.prior_log_throughput = factor * (truth(o.coordinates) - 8.0);
      const Surrogate model = Surrogate::fit(space, std::move(observations), use);
      Random random(seed + 50);
      for (int i = 0; i < 40; ++i) {
        const std::vector<double> x = space.coordinates(space.sample(random));
        const double error = model.predict(x, factor * (truth(x) - 8.0)).mean - truth(x);
        squares += error * error;
      }
    }
    return std::sqrt(squares / 200);
  };
  const double without = error_with(1, false);
  EXPECT_LT(error_with(1, true), 0.6 * without);
  EXPECT_LT(error_with(-1, true), 1.5 * without);
}

TEST(Surrogate, APretendedTrialLeavesTheMeanAndTakesTheVariance) {
  const Space space = small_space();
  const Surrogate model = Surrogate::fit(space, observe(space, 10, 0.03, 3), false);
  Random random(9);
  const std::vector<double> x = space.coordinates(space.sample(random));
  const Surrogate extended = model.with_pretended(x);
  EXPECT_NEAR(extended.predict(x).mean, model.predict(x).mean, 0.005);
  EXPECT_LT(extended.predict(x).variance, model.predict(x).variance);
}

}  // namespace
}  // namespace lockstep::tune
