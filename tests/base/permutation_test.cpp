#include "lockstep/base/permutation.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace lockstep {
namespace {

TEST(Permutation, is_a_bijection_for_every_small_size) {
  for (std::int64_t n = 1; n <= 600; ++n) {
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      const Permutation permutation(n, 17, epoch);
      std::vector<bool> seen(n, false);
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t value = permutation(i);
        ASSERT_TRUE(value >= 0 && value < n && !seen[value]) << "n " << n << " epoch " << epoch << " index " << i;
        seen[value] = true;
      }
    }
  }
}

TEST(Permutation, is_a_bijection_for_a_large_size) {
  const std::int64_t n = 1'000'003;
  const Permutation permutation(n, 3, 1);
  std::vector<bool> seen(n, false);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t value = permutation(i);
    ASSERT_FALSE(seen.at(value));
    seen[value] = true;
  }
}

TEST(Permutation, needs_no_memory_for_sets_beyond_any_memory) {
  const std::int64_t n = (std::int64_t{1} << 62) - 5;
  const Permutation permutation(n, 1, 0);
  std::set<std::int64_t> values;
  for (std::int64_t i = 0; i < 1000; ++i) {
    const std::int64_t value = permutation(n - 1 - i);
    EXPECT_TRUE(value >= 0 && value < n);
    values.insert(value);
  }
  EXPECT_EQ(values.size(), 1000u);
}

// The order is part of what a checkpoint means: it may never change.
TEST(Permutation, has_the_order_it_always_had) {
  const Permutation permutation(10, 1, 0);
  std::vector<std::int64_t> order;
  for (int i = 0; i < 10; ++i) order.push_back(permutation(i));
  EXPECT_EQ(order, (std::vector<std::int64_t>{2, 6, 8, 9, 1, 0, 3, 4, 5, 7}));
}

TEST(Permutation, differs_from_epoch_to_epoch_and_from_seed_to_seed) {
  const std::int64_t n = 10'000;
  const Permutation a(n, 1, 2);
  for (const Permutation& b : {Permutation(n, 1, 3), Permutation(n, 2, 2), Permutation(n, 2, 1)}) {
    int same = 0;
    for (std::int64_t i = 0; i < n; ++i) same += a(i) == b(i);
    EXPECT_LT(same, 10);  // one is expected of unrelated permutations
  }
}

// Chi-squared over the place where sample 0 comes, and over neighbours: a poor round function shows here.
TEST(Permutation, spreads_samples_evenly) {
  const std::int64_t n = 64;
  const int epochs = 64 * 200;
  std::vector<int> first(n, 0);
  std::vector<int> step(n, 0);
  for (int epoch = 0; epoch < epochs; ++epoch) {
    const Permutation permutation(n, 5, epoch);
    ++first[permutation(0)];
    ++step[(permutation(8) - permutation(7) + n) % n];
  }
  EXPECT_EQ(step[0], 0);
  double chi_first = 0;
  double chi_step = 0;
  const double expected_step = static_cast<double>(epochs) / (n - 1);
  for (std::int64_t i = 0; i < n; ++i) {
    chi_first += (first[i] - 200.0) * (first[i] - 200.0) / 200.0;
    if (i > 0) chi_step += (step[i] - expected_step) * (step[i] - expected_step) / expected_step;
  }
  EXPECT_LT(chi_first, 120.0);  // 63 degrees of freedom: beyond 113 once in ten thousand
  EXPECT_LT(chi_step, 120.0);
}

}  // namespace
}  // namespace lockstep
