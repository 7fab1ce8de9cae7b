// Data sets mixed by weight: shares, passes without repetition, the same samples on any ranks and after a resume.
#include "lockstep/data/mixed_dataset.h"

#include <gtest/gtest.h>

#include <map>

#include "lockstep/data/loader.h"
#include "testing.h"

namespace lockstep::data {
namespace {

using namespace lockstep::data::testing;

// Samples whose input is [base + index].
class Numbers final : public Dataset {
 public:
  Numbers(std::int64_t size, std::int64_t base, std::int64_t tokens = 1) : size_(size), base_(base), tokens_(tokens) {}
  std::int64_t size() const override { return size_; }
  std::int64_t tokens_per_sample() const override { return tokens_; }
  Samples fetch(std::span<const std::int64_t> indices) const override {
    std::vector<std::int64_t> values;
    for (const std::int64_t index : indices) values.push_back(base_ + index);
    const auto count = static_cast<std::int64_t>(values.size());
    const torch::Tensor tensor = torch::tensor(values, torch::kInt64).reshape({count, 1});
    return {tensor, tensor + 1};
  }
  std::string describe() const override { return "numbers"; }

 private:
  std::int64_t size_, base_, tokens_;
};

std::shared_ptr<const Dataset> mixture() {
  return mix_datasets({{std::make_shared<Numbers>(30, 0), 3.0}, {std::make_shared<Numbers>(70, 1000), 1.0}}, 5);
}

std::vector<std::int64_t> values(const torch::Tensor& tensor) {
  return {tensor.data_ptr<std::int64_t>(), tensor.data_ptr<std::int64_t>() + tensor.numel()};
}

std::vector<std::int64_t> epoch_of(const Dataset& data, std::int64_t epoch) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(data.size()));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  return values(data.fetch_in_epoch(all, epoch).input.contiguous());
}

TEST(Mixture, takes_from_each_source_by_its_weight) {
  const auto mixed = mixture();
  ASSERT_EQ(mixed->size(), 100);
  int first = 0;
  for (const std::int64_t value : epoch_of(*mixed, 0)) first += value < 1000 ? 1 : 0;
  EXPECT_EQ(first, 75);
}

TEST(Mixture, no_sample_comes_twice_before_all_came_once_also_across_epochs) {
  const auto mixed = mixture();
  std::map<std::int64_t, int> seen;
  for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
    for (const std::int64_t value : epoch_of(*mixed, epoch)) ++seen[value];
  }
  for (std::int64_t i = 0; i < 30; ++i) EXPECT_EQ(seen[i], 10) << i;  // 4 x 75 = 10 passes
  int twice = 0;
  for (std::int64_t i = 0; i < 70; ++i) {
    EXPECT_GE(seen[1000 + i], 1) << i;  // 4 x 25 = one pass and 30 more
    twice += seen[1000 + i] == 2 ? 1 : 0;
  }
  EXPECT_EQ(twice, 30);
}

TEST(Mixture, targets_stay_with_their_inputs) {
  const std::vector<std::int64_t> some = {80, 3, 41, 99, 0};
  const Samples samples = mixture()->fetch_in_epoch(some, 2);
  EXPECT_TRUE(torch::equal(samples.input + 1, samples.target));
  EXPECT_EQ(mixture()->fetch_in_epoch(std::vector<std::int64_t>{}, 2).input.size(0), 0);
}

TEST(Mixture, two_ranks_see_what_one_sees_and_a_resume_goes_on) {
  Loader alone(mixture(), {.micro = 8, .seed = 2});
  LoaderOptions pair{.micro = 4, .data_world = 2, .seed = 2};
  Loader zero(mixture(), pair);
  pair.data_rank = 1;
  Loader one(mixture(), pair);
  std::vector<std::vector<std::int64_t>> steps;
  Position place;
  for (int step = 0; step < 20; ++step) {
    if (step == 15) place = alone.position();
    steps.push_back(values(alone.next().input));
    std::vector<std::int64_t> both = values(zero.next().input);
    const std::vector<std::int64_t> other = values(one.next().input);
    both.insert(both.end(), other.begin(), other.end());
    EXPECT_EQ(both, steps.back()) << step;
  }
  Loader resumed(mixture(), {.micro = 8, .seed = 2}, place);
  for (int step = 15; step < 20; ++step) EXPECT_EQ(values(resumed.next().input), steps[step]) << step;
}

TEST(Mixture, of_different_lengths_is_refused) {
  expect_user_error(ExitCode::kUsage, {"different lengths"}, [] {
    mix_datasets({{std::make_shared<Numbers>(3, 0, 1), 1.0}, {std::make_shared<Numbers>(3, 0, 2), 1.0}}, 1);
  });
}

TEST(Joined, has_every_sample_of_every_source_once) {
  const auto joined = join_datasets({std::make_shared<Numbers>(3, 0), std::make_shared<Numbers>(2, 10)});
  EXPECT_EQ(epoch_of(*joined, 0), (std::vector<std::int64_t>{0, 1, 2, 10, 11}));
}

}  // namespace
}  // namespace lockstep::data
