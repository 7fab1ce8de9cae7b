#include "lockstep/checkpoint/copy_values.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <limits>
#include <vector>

namespace lockstep::checkpoint {
namespace {

const auto kFloats = {torch::kFloat64, torch::kFloat32, torch::kBFloat16, torch::kFloat16};

struct Copied {
  bool finite = false;
  bool same = false;
};

// The values into memory that begins `shift` values after a line of the cache.
Copied copied(const torch::Tensor& values, std::size_t shift) {
  const std::size_t width = values.element_size(), bytes = values.numel() * width;
  std::vector<double> room((bytes + 128) / sizeof(double) + 8);
  auto* to = reinterpret_cast<unsigned char*>(room.data());
  to += (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64 + shift * width;
  const auto* from = static_cast<const unsigned char*>(values.data_ptr());
  const bool finite = copy_values(to, from, bytes, exponent_bits(values.scalar_type()));
  return {finite, std::memcmp(to, from, bytes) == 0};
}

TEST(CopyValues, copies_every_length_to_every_place) {
  for (const auto dtype : kFloats) {
    for (std::int64_t count : {0, 1, 2, 3, 7, 8, 31, 64, 65, 1001}) {
      const torch::Tensor values = torch::randn({count}).to(dtype);
      for (std::size_t shift = 0; shift < 8; ++shift) {
        const Copied result = copied(values, shift);
        EXPECT_TRUE(result.same && result.finite) << dtype << " " << count << " " << shift;
      }
    }
  }
}

TEST(CopyValues, finds_one_value_that_is_not_finite_wherever_it_is) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const auto dtype : kFloats) {
    for (std::int64_t at = 0; at < 75; ++at) {
      for (const double bad : {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
        torch::Tensor values = torch::randn({75}).to(dtype);
        values[at] = bad;
        const Copied result = copied(values, static_cast<std::size_t>(at % 5));
        EXPECT_TRUE(result.same && !result.finite) << dtype << " at " << at << ": " << bad;
      }
    }
  }
}

TEST(CopyValues, largest_and_smallest_numbers_are_finite) {
  const double largest = std::numeric_limits<double>::max(), smallest = std::numeric_limits<double>::denorm_min();
  EXPECT_TRUE(copied(torch::tensor({largest, -largest, smallest, 0.0, -0.0}, torch::kFloat64), 1).finite);
  EXPECT_TRUE(copied(torch::full({37}, 3.3e38, torch::kFloat32), 1).finite);
  EXPECT_TRUE(copied(torch::full({37}, 65504.0, torch::kFloat16), 1).finite);
}

TEST(CopyValues, whole_numbers_are_copied_whatever_their_bits) {
  const Copied result = copied(torch::full({100}, -1, torch::kInt64), 1);
  EXPECT_TRUE(result.same && result.finite);
  EXPECT_TRUE(copied(torch::full({100}, 0x7f800000, torch::kInt32), 1).finite);
}

}  // namespace
}  // namespace lockstep::checkpoint
