// What is learned from failed trials: each cause by its own model.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/tune/models/feasibility.h"
#include "lockstep/tune/models/refusals.h"
#include "lockstep/tune/study/failure.h"

namespace lockstep::tune {
namespace {

Space words() {
  return Space::parse(
      "knobs:\n"
      "  stage: {choices: [zero, one, two, three]}\n"
      "  offload: {choices: [none, optimizer, params]}\n"
      "  other: {choices: [a, b, c]}\n",
      "failures_test");
}

Config config(const char* stage, const char* offload, const char* other) {
  return {{std::string(stage), std::string(offload), std::string(other)}};
}

TEST(Refusals, FindThePairThatIsToBlame) {
  const Space space = words();
  const std::vector<Refusals::Point> seen{{config("one", "optimizer", "a"), false, ""},
                                          {config("zero", "none", "b"), false, ""},
                                          {config("zero", "optimizer", "b"), true, "refused"},
                                          {config("zero", "optimizer", "a"), true, "refused"}};
  const Refusals refusals(space, seen);
  EXPECT_LT(refusals.accepts(config("zero", "optimizer", "c")), 0.5);
  EXPECT_GT(refusals.accepts(config("zero", "none", "c")), 0.9);
  EXPECT_GT(refusals.accepts(config("two", "optimizer", "a")), 0.9);
}

TEST(Refusals, ReadTheMessage) {
  const Space space = words();
  const auto after = [&](const char* message) {
    return Refusals(space, std::vector<Refusals::Point>{{config("zero", "optimizer", "b"), true, message}})
        .accepts(config("zero", "optimizer", "c"));
  };
  EXPECT_LT(after("ValueError: off-load needs stage 1 or higher"), after("ValueError: no") - 0.25);
}

TEST(Refusals, PredictWhatTheySawBefore) {
  const Space space = words();
  std::vector<Refusals::Point> seen;
  for (const char* other : {"a", "b", "c"})
    for (const char* stage : {"one", "two", "zero"})
      seen.push_back({config(stage, "optimizer", other), std::string(stage) == "zero", ""});
  std::vector<Refusals::Point> without_reason = seen;
  for (std::size_t i = 0; i < seen.size(); ++i) without_reason[i].refused = i % 3 == i / 3;
  EXPECT_GT(Refusals(space, seen).predictive_score(), Refusals(space, without_reason).predictive_score());
}

// Three refused micro-batches are enough to see that the others must divide something.
TEST(Refusals, FindWhatDoesNotDivide) {
  const Space space = Space::parse(
      "knobs:\n"
      "  batch: {choices: [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48]}\n"
      "  other: {choices: [a, b, c]}\n",
      "failures_test");
  const auto with = [](std::int64_t batch, const char* other) { return Config{{batch, std::string(other)}}; };
  std::vector<Refusals::Point> seen;
  for (const std::int64_t batch : {2, 4, 8, 16}) seen.push_back({with(batch, "a"), false, ""});
  for (const std::int64_t batch : {3, 6, 24}) seen.push_back({with(batch, "b"), true, ""});
  seen.push_back({with(1, "b"), false, ""});
  const Refusals refusals(space, seen);
  EXPECT_LT(refusals.accepts(with(12, "c")), refusals.accepts(with(32, "c")) - 0.25);
  EXPECT_LT(refusals.accepts(with(48, "a")), refusals.accepts(with(1, "c")) - 0.25);
}

Space loaders() {
  return Space::parse(
      "knobs:\n"
      "  num_workers: {int: [1, 32], default: 1}\n"
      "  prefetch_factor: {choices: [1, 2, 4, 8, 16], default: 1}\n"
      "  micro_batch: {choices: [1, 2, 4, 8, 16, 32, 64], default: 1}\n",
      "failures_test");
}

FeasibilityPoint point(const Space& space, std::int64_t workers, std::int64_t prefetch, std::int64_t micro,
                       const char* message) {
  const Config config{{workers, prefetch, micro}};
  const Outcome outcome = *message == 0 ? Outcome::kMeasured : Outcome::kOutOfMemory;
  return {config, space.coordinates(config), outcome, message, 1};
}

double runs(const Feasibility& model, const Space& space, std::int64_t workers, std::int64_t prefetch,
            std::int64_t micro) {
  const Config config{{workers, prefetch, micro}};
  return model.probability(config, space.coordinates(config));
}

TEST(Feasibility, MemoryOfTheHostIsNotBlamedOnTheMicroBatchAlone) {
  const Space space = loaders();
  const char* killed = "RuntimeError: DataLoader worker is killed by signal: Killed.";
  const std::vector<FeasibilityPoint> seen{point(space, 1, 1, 1, ""),       point(space, 2, 2, 16, ""),
                                           point(space, 16, 8, 2, ""),      point(space, 2, 1, 32, ""),
                                           point(space, 24, 8, 16, killed), point(space, 16, 16, 16, killed),
                                           point(space, 8, 16, 32, killed)};
  const Feasibility model = Feasibility::fit(space, seen, false);
  EXPECT_GT(runs(model, space, 2, 1, 64), 2 * runs(model, space, 24, 16, 64));
  EXPECT_GT(runs(model, space, 2, 1, 64), 0.4);
}

TEST(Feasibility, MemoryOfTheDeviceIsNotBlamedOnTheWorkers) {
  const Space space = loaders();
  const char* cuda = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.";
  const std::vector<FeasibilityPoint> seen{point(space, 1, 1, 1, ""), point(space, 4, 2, 8, ""),
                                           point(space, 24, 8, 32, cuda), point(space, 8, 4, 64, cuda)};
  const Feasibility model = Feasibility::fit(space, seen, false);
  EXPECT_GT(runs(model, space, 24, 16, 8), 0.6);
  EXPECT_LT(runs(model, space, 1, 1, 64), 0.3);
}

TEST(Failure, SaysWhichMemoryRanOut) {
  EXPECT_EQ(memory_kind("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"), MemoryKind::kDevice);
  EXPECT_EQ(memory_kind("RuntimeError: DataLoader worker is killed by signal: Killed."), MemoryKind::kHost);
  EXPECT_EQ(memory_kind("OSError: [Errno 12] Cannot allocate memory"), MemoryKind::kHost);
  EXPECT_EQ(memory_kind("out of memory"), MemoryKind::kUnknown);
}

}  // namespace
}  // namespace lockstep::tune
