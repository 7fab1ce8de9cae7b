// What the usual names of knobs tell before and after trials: memory_sketch.h, speed_sketch.h.
#include <gtest/gtest.h>

#include "lockstep/tune/models/memory_sketch.h"
#include "lockstep/tune/models/speed_sketch.h"

namespace lockstep::tune {
namespace {

constexpr const char* kSpace = R"(
knobs:
  micro_batch: {choices: [1, 2, 4, 8, 16, 32]}
  recompute: {choices: [none, selective, full], default: full}
  zero: {choices: [0, 1, 2, 3], default: 3}
  num_workers: {choices: [0, 2, 4]}
)";

Config config_of(const Space& space, std::int64_t micro_batch, const char* recompute, std::int64_t zero) {
  Config config = space.default_config();
  config.values[0] = micro_batch;
  config.values[1] = std::string(recompute);
  config.values[2] = zero;
  return config;
}

TEST(MemorySketch, KnowsWhichWayMemoryGoesBeforeAnythingFailed) {
  const Space space = Space::parse(kSpace, "test");
  const MemorySketch sketch(space, std::vector<MemorySketch::Point>{{space.default_config(), true}});
  EXPECT_GT(sketch.fits(config_of(space, 2, "full", 3)), sketch.fits(config_of(space, 16, "full", 3)));
  EXPECT_GT(sketch.fits(config_of(space, 4, "full", 3)), sketch.fits(config_of(space, 4, "none", 3)));
  EXPECT_GT(sketch.fits(config_of(space, 1, "full", 2)), sketch.fits(config_of(space, 1, "full", 0)));
  EXPECT_GT(sketch.fits(space.default_config()), 0.9);
}

TEST(MemorySketch, LearnsTheCliffFromOneFailureAndOneSuccess) {
  const Space space = Space::parse(kSpace, "test");
  const std::vector<MemorySketch::Point> seen{{space.default_config(), true},
                                              {config_of(space, 8, "selective", 3), true},
                                              {config_of(space, 16, "selective", 3), false}};
  const MemorySketch sketch(space, seen);
  EXPECT_GT(sketch.fits(config_of(space, 4, "selective", 3)), 0.9);
  EXPECT_LT(sketch.fits(config_of(space, 32, "selective", 3)), 0.1);
  EXPECT_LT(sketch.fits(config_of(space, 16, "none", 3)), 0.2);
  EXPECT_GT(sketch.fits(config_of(space, 16, "full", 3)), 0.6) << "recomputation makes room for a larger batch";
}

TEST(MemorySketch, StatesThatDoNotFitSayNothingAgainstLargerBatches) {
  const Space space = Space::parse(kSpace, "test");
  const std::vector<MemorySketch::Point> seen{{space.default_config(), true},
                                              {config_of(space, 16, "full", 3), true},
                                              {config_of(space, 1, "full", 0), false},
                                              {config_of(space, 1, "full", 1), false}};
  const MemorySketch sketch(space, seen);
  EXPECT_LT(sketch.fits(config_of(space, 2, "full", 0)), 0.15);
  EXPECT_GT(sketch.fits(config_of(space, 8, "full", 3)), 0.8);
}

TEST(MemorySketch, LearnsTheCliffOfAKnobWhoseNameSaysNothing) {
  const Space space = Space::parse("knobs: {k0: {choices: [1, 2, 4, 8, 16, 32]}, k1: {choices: [a, b]}}", "test");
  const auto with = [&](std::int64_t value) {
    Config config = space.default_config();
    config.values[0] = value;
    return config;
  };
  const MemorySketch sketch(space,
                            std::vector<MemorySketch::Point>{{with(1), true}, {with(4), true}, {with(16), false}});
  EXPECT_GT(sketch.fits(with(2)), 0.85);
  EXPECT_LT(sketch.fits(with(32)), 0.15);
}

TEST(MemorySketch, IsAFunctionOfWhatWasSeen) {
  const Space space = Space::parse(kSpace, "test");
  const std::vector<MemorySketch::Point> seen{{space.default_config(), true}, {config_of(space, 16, "none", 3), false}};
  const Config asked = config_of(space, 8, "selective", 2);
  EXPECT_EQ(MemorySketch(space, seen).fits(asked), MemorySketch(space, seen).fits(asked));
}

TEST(SpeedSketch, LargerMicroBatchesAndLessRecomputationAreFaster) {
  const Space space = Space::parse(kSpace, "test");
  const SpeedSketch sketch(space);
  const auto speed = [&](std::int64_t micro_batch, const char* recompute, std::int64_t zero) {
    return sketch.log_throughput(config_of(space, micro_batch, recompute, zero));
  };
  EXPECT_GT(speed(8, "full", 2), speed(2, "full", 2));
  EXPECT_GT(speed(2, "none", 2), speed(2, "full", 2));
}

TEST(SpeedSketch, NamesThatSayNothingChangeNothing) {
  const Space space = Space::parse("knobs: {k0: {choices: [1, 2, 4]}, k1: {choices: [a, b]}}", "test");
  const SpeedSketch sketch(space);
  Config config = space.default_config();
  config.values[0] = std::int64_t{4};
  config.values[1] = std::string("b");
  EXPECT_EQ(sketch.log_throughput(config), sketch.log_throughput(space.default_config()));
}

}  // namespace
}  // namespace lockstep::tune
