// The laboratory's surfaces are what they claim: the same everywhere, described by their space files, and with a truth
// that nothing exceeds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "bench/tune/lab_surface.h"
#include "bench/tune/surfaces.h"
#include "lockstep/tune/space/space.h"

namespace lockstep::bench {
namespace {

constexpr int kInstances = 4;

std::vector<std::string> all_kinds() {
  std::vector<std::string> kinds = lab_kinds("dev");
  for (const std::string& kind : lab_kinds("final")) kinds.push_back(kind);
  return kinds;
}

class LabSurfaceOfKind : public testing::TestWithParam<std::string> {
 protected:
  // Of every instance: combinations drawn without rules.
  template <class F>
  void each_draw(int count, F visit) {
    for (int instance = 0; instance < kInstances; ++instance) {
      const auto surface = make_surface(GetParam(), instance);
      Draws draws(static_cast<std::uint64_t>(77 + instance));
      for (int n = 0; n < count; ++n) visit(*surface, surface->draw(draws, false));
    }
  }
};

TEST_P(LabSurfaceOfKind, SpaceFileAllowsWhatTheRulesAllow) {
  for (int instance = 0; instance < kInstances; ++instance) {
    const auto surface = make_surface(GetParam(), instance);
    const tune::Space space = tune::Space::parse(surface->space_yaml(), GetParam());
    Draws draws(5);
    for (int n = 0; n < 500; ++n) {
      const Point point = surface->draw(draws, false);
      ASSERT_EQ(space.is_valid(surface->config_of(point)), surface->obeys_rules(point)) << surface->json_of(point);
    }
    if (surface->tells_defaults()) {
      EXPECT_EQ(surface->point_of(space.default_config()), surface->default_point());
    }
  }
}

TEST_P(LabSurfaceOfKind, OddInstancesKeepTheirDefaultsSecret) {
  EXPECT_NE(make_surface(GetParam(), 0)->space_yaml().find("default:"), std::string::npos);
  EXPECT_TRUE(make_surface(GetParam(), 0)->describe()["knobs"][0].contains("default"));
  EXPECT_EQ(make_surface(GetParam(), 1)->space_yaml().find("default:"), std::string::npos);
  EXPECT_FALSE(make_surface(GetParam(), 1)->describe()["knobs"][0].contains("default"));
}

TEST_P(LabSurfaceOfKind, DefaultRunsAndSomethingIsMuchFaster) {
  for (int instance = 0; instance < 8; ++instance) {
    const auto surface = make_surface(GetParam(), instance);
    const SurfaceTruth at_default = surface->at(surface->default_point());
    ASSERT_EQ(at_default.outcome, tune::Outcome::kMeasured) << instance << " " << at_default.message;
    EXPECT_GT(find_optimum(*surface).throughput, 1.03 * at_default.throughput) << instance;
  }
}

TEST_P(LabSurfaceOfKind, NothingExceedsTheOptimum) {
  for (int instance = 0; instance < kInstances; ++instance) {
    const auto surface = make_surface(GetParam(), instance);
    const SurfaceOptimum optimum = find_optimum(*surface);
    EXPECT_TRUE(surface->obeys_rules(optimum.point));
    EXPECT_EQ(surface->at(optimum.point).throughput, optimum.throughput);
    // Wanderers that accept what is a little worse, from points that the search did not start from.
    Draws draws(static_cast<std::uint64_t>(991 + instance));
    for (int walk = 0; walk < 40; ++walk) {
      Point here = surface->draw(draws, true);
      for (int step = 0; step < 1500; ++step) {
        Point there = surface->draw(draws, true);
        const int changed = 1 + draws.below(3);
        std::set<int> knobs;
        for (int n = 0; n < changed; ++n) knobs.insert(draws.below(static_cast<int>(here.size())));
        for (std::size_t k = 0; k < here.size(); ++k) {
          if (!knobs.contains(static_cast<int>(k)) && surface->is_active(k, there) && here[k] >= 0) there[k] = here[k];
          if (!surface->is_active(k, there)) there[k] = -1;
          if (surface->is_active(k, there) && there[k] < 0) there[k] = 0;
        }
        const double value = surface->at(there).throughput;
        ASSERT_LE(value, optimum.throughput * (1 + 1e-12)) << surface->json_of(there);
        if (value >= surface->at(here).throughput * (1 - 0.02 * draws.uniform(0, 1))) here = there;
      }
    }
  }
}

TEST_P(LabSurfaceOfKind, FailuresOfSeveralKindsAreAFewToMostOfTheDraws) {
  int failed = 0, all = 0;
  std::set<tune::Outcome> outcomes;
  each_draw(3000, [&](const Surface& surface, const Point& point) {
    const SurfaceTruth truth = surface.at(point);
    ++all;
    failed += truth.outcome != tune::Outcome::kMeasured;
    outcomes.insert(truth.outcome);
    EXPECT_EQ(truth.outcome == tune::Outcome::kMeasured, truth.throughput > 0);
    EXPECT_EQ(truth.outcome == tune::Outcome::kMeasured, truth.message.empty());
  });
  EXPECT_TRUE(outcomes.contains(tune::Outcome::kOutOfMemory) || outcomes.contains(tune::Outcome::kInvalid));
  EXPECT_GT(failed, all / 20);
  EXPECT_LT(failed, all * 19 / 20);
}

TEST_P(LabSurfaceOfKind, TrialsCostSecondsAndEndByTheLimit) {
  each_draw(500, [](const Surface& surface, const Point& point) {
    const SurfaceMeasurement measured = surface.measure(point, 1, 4);
    EXPECT_GT(measured.seconds, 5);
    EXPECT_LE(measured.seconds, 180.001);
  });
}

TEST_P(LabSurfaceOfKind, HiddenNamesSayNothingAndChangeNothing) {
  for (int instance = 0; instance < kInstances; ++instance) {
    const auto plain = make_surface(GetParam(), instance);
    const auto hidden = make_surface(GetParam(), instance);
    hidden->hide_names();
    const std::string yaml = hidden->space_yaml();
    const tune::Space space = tune::Space::parse(yaml, GetParam());
    std::set<std::string> words;
    for (const SurfaceKnob& knob : plain->knobs()) {
      EXPECT_EQ(yaml.find(knob.name + ":"), std::string::npos) << knob.name;
      for (const tune::Value& level : knob.levels) {
        if (const std::string* word = std::get_if<std::string>(&level)) words.insert(*word);
      }
    }
    for (const SurfaceKnob& knob : hidden->knobs()) {
      for (const tune::Value& level : knob.levels) {
        const std::string* word = std::get_if<std::string>(&level);
        EXPECT_FALSE(word && words.contains(*word)) << *word;
      }
    }
    Draws draws(3);
    for (int n = 0; n < 300; ++n) {
      const Point point = plain->draw(draws, false);
      ASSERT_EQ(hidden->at(point).outcome, plain->at(point).outcome);
      ASSERT_EQ(hidden->measure(point, 2, n).samples, plain->measure(point, 2, n).samples);
      ASSERT_EQ(hidden->point_of(hidden->json_of(point)), point);
      ASSERT_EQ(space.is_valid(hidden->config_of(point)), hidden->obeys_rules(point));
    }
  }
}

TEST_P(LabSurfaceOfKind, InstancesAreDeterministicAndDiffer) {
  const auto first = make_surface(GetParam(), 3), again = make_surface(GetParam(), 3),
             other = make_surface(GetParam(), 5);
  const Point point = first->default_point();
  EXPECT_EQ(first->at(point).throughput, again->at(point).throughput);
  EXPECT_EQ(first->measure(point, 7, 3).samples, again->measure(point, 7, 3).samples);
  EXPECT_NE(first->at(point).throughput, other->at(other->default_point()).throughput);
  EXPECT_NE(first->measure(point, 7, 3).samples, first->measure(point, 7, 4).samples);
  EXPECT_NE(first->measure(point, 7, 3).samples, first->measure(point, 8, 3).samples);
}

TEST_P(LabSurfaceOfKind, NoiseOfALaunchIsThreePercentWhenTheMachineDoesNotDrift) {
  const auto surface = make_surface(GetParam(), 2);
  const Point point = surface->default_point();
  double sum = 0, squares = 0;
  constexpr int kLaunches = 4000;
  for (int trial = 0; trial < kLaunches; ++trial) {
    const std::vector<double> samples = surface->measure(point, 1, trial).samples;
    double mean = 0;
    for (const double sample : samples) mean += sample / static_cast<double>(samples.size());
    const double value = std::log(mean / surface->at(point).throughput) - surface->log_drift(1, trial);
    sum += value;
    squares += value * value;
  }
  const double mean = sum / kLaunches;
  EXPECT_NEAR(mean, 0, 0.004);
  EXPECT_NEAR(std::sqrt(squares / kLaunches - mean * mean), 0.03, 0.003);
}

INSTANTIATE_TEST_SUITE_P(Kinds, LabSurfaceOfKind, testing::ValuesIn(all_kinds()));

// Point of a surface with one knob set; the rest as the default.
Point with(const Surface& surface, const std::string& knob, int level) {
  Point point = surface.default_point();
  for (std::size_t k = 0; k < point.size(); ++k) {
    if (surface.knobs()[k].name == knob) point[k] = level;
  }
  return point;
}

bool runs(const Surface& surface, const Point& point) { return surface.at(point).outcome == tune::Outcome::kMeasured; }

// What fails with less memory asked for fails with more.
void expect_monotone(const std::string& kind, const std::string& knob) {
  for (int instance = 0; instance < 10; ++instance) {
    const auto surface = make_surface(kind, instance);
    const auto found = std::ranges::find(surface->knobs(), knob, &SurfaceKnob::name);
    ASSERT_NE(found, surface->knobs().end());
    bool failed = false;
    for (int level = 0; level < static_cast<int>(found->levels.size()); ++level) {
      const SurfaceTruth truth = surface->at(with(*surface, knob, level));
      if (truth.outcome == tune::Outcome::kInvalid) continue;
      EXPECT_FALSE(failed && runs(*surface, with(*surface, knob, level))) << kind << " " << instance << " " << level;
      failed |= truth.outcome == tune::Outcome::kOutOfMemory;
    }
  }
}

TEST(LabSurfaces, MoreMemoryAskedForNeverHelpsItFit) {
  expect_monotone("dev_ddp", "micro_batch");
  expect_monotone("dev_ddp", "num_workers");
  expect_monotone("dev_ddp", "prefetch_factor");
  expect_monotone("dev_zero", "micro_batch");
  expect_monotone("dev_words", "micro_batch");
  expect_monotone("final_stream", "connections");
  expect_monotone("final_stream", "shuffle_buffer_k");
  expect_monotone("final_stream", "batch");
  expect_monotone("final_moe", "micro_batch");
}

TEST(LabSurfaces, ADriftingMachineLosesUpToAThirdAndForManyTrials) {
  const auto surface = make_surface("dev_cloud", 0);
  double least = 0, steps = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const double here = surface->log_drift(3, trial), next = surface->log_drift(3, trial + 1);
    least = std::min(least, here);
    steps += std::abs(next - here) > 0.04;
  }
  EXPECT_LT(least, -0.1);
  EXPECT_GT(least, -0.4);
  EXPECT_GT(steps, 5);
  EXPECT_LT(steps, 60);
  EXPECT_EQ(make_surface("dev_ddp", 0)->log_drift(3, 40), 0);
}

TEST(LabSurfaces, AHalfThatDoesNotExistIsRefused) { EXPECT_ANY_THROW(lab_kinds("both")); }

}  // namespace
}  // namespace lockstep::bench
