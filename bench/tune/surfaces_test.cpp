// The benchmark's surfaces are what they claim: known, deterministic, and described by their space files.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "bench/tune/surfaces.h"
#include "lockstep/tune/space/space.h"

namespace lockstep::bench {
namespace {

class SurfaceOfKind : public testing::TestWithParam<std::string> {};

TEST_P(SurfaceOfKind, SpaceFileHoldsExactlyTheConfigurationsThatTheRulesAllow) {
  for (int instance = 0; instance < 3; ++instance) {
    const auto surface = make_surface(GetParam(), instance);
    const tune::Space space = tune::Space::parse(surface->space_yaml(), GetParam());
    std::uint64_t count = 0, refused = 0;
    surface->for_each([&](PointView point) {
      if (++count % 101 == 0) refused += !space.is_valid(surface->config_of(point));
    });
    EXPECT_EQ(space.count(), count);
    EXPECT_EQ(refused, 0U);
    EXPECT_EQ(surface->point_of(space.default_config()), surface->default_point());
  }
}

TEST_P(SurfaceOfKind, DefaultRuns) {
  for (int instance = 0; instance < 40; ++instance) {
    const auto surface = make_surface(GetParam(), instance);
    EXPECT_EQ(surface->at(surface->default_point()).outcome, tune::Outcome::kMeasured) << instance;
  }
}

TEST_P(SurfaceOfKind, NoiseDependsOnTheTrialAndNotOnTheConfiguration) {
  const auto surface = make_surface(GetParam(), 1);
  const Point point = surface->default_point();
  Draws draws(5);
  Point other = surface->draw(draws, true);
  while (surface->at(other).outcome != tune::Outcome::kMeasured) other = surface->draw(draws, true);
  const double factor = surface->measure(point, 7, 3).samples[0] / surface->at(point).throughput;
  EXPECT_NEAR(surface->measure(other, 7, 3).samples[0] / surface->at(other).throughput, factor, 1e-12);
  EXPECT_NE(surface->measure(point, 7, 4).samples[0], surface->measure(point, 7, 3).samples[0]);
  EXPECT_NE(surface->measure(point, 8, 3).samples[0], surface->measure(point, 7, 3).samples[0]);
  EXPECT_EQ(make_surface(GetParam(), 1)->measure(point, 7, 3).samples, surface->measure(point, 7, 3).samples);
}

TEST_P(SurfaceOfKind, NoiseIsThreePercentAndUnbiased) {
  const auto surface = make_surface(GetParam(), 2);
  const Point point = surface->default_point();
  constexpr int kLaunches = 20'000;
  double sum = 0, squares = 0;
  for (int trial = 0; trial < kLaunches; ++trial) {
    const std::vector<double> samples = surface->measure(point, 1, trial).samples;
    const double mean = std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
    const double factor = mean / surface->at(point).throughput;
    sum += factor;
    squares += factor * factor;
  }
  const double mean = sum / kLaunches;
  EXPECT_NEAR(mean, 1, 0.001);
  EXPECT_NEAR(std::sqrt(squares / kLaunches - mean * mean), 0.03, 0.002);
}

TEST_P(SurfaceOfKind, JsonAndConfigurationsNameTheSamePoint) {
  const auto surface = make_surface(GetParam(), 0);
  Draws draws(9);
  for (int n = 0; n < 200; ++n) {
    const Point point = surface->draw(draws, false);
    EXPECT_EQ(surface->point_of(surface->json_of(point)), point);
    EXPECT_EQ(surface->point_of(surface->config_of(point)), point);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, SurfaceOfKind, testing::ValuesIn(surface_kinds()));

}  // namespace
}  // namespace lockstep::bench
