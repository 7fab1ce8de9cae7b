#include "lockstep/kernels/sign_bits.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <vector>

namespace lockstep::kernels {
namespace {

template <typename T>
std::vector<T> normal_values(std::int64_t count) {
  torch::manual_seed(7);
  const torch::Tensor x = torch::randn({count}, torch::TensorOptions().dtype(torch::kFloat64));
  const double* data = x.data_ptr<double>();
  return std::vector<T>(data, data + count);
}

template <typename T>
void unpacked_plus_rest_is_the_input(std::int64_t count, double tolerance) {
  const std::vector<T> input = normal_values<T>(count);
  std::vector<T> rest = input;
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(packed_sign_bytes(count)));
  pack_signs(rest.data(), count, packed.data());
  std::vector<T> sum = rest;
  add_signs(packed.data(), count, sum.data());
  for (std::int64_t i = 0; i < count; ++i) ASSERT_NEAR(sum[i], input[i], tolerance) << "element " << i;
}

TEST(SignBits, unpacked_plus_rest_is_the_input) {
  for (const std::int64_t count : {1, 7, 8, 9, 1023, 1024, 1025, 50000}) {
    unpacked_plus_rest_is_the_input<float>(count, 1e-6);
    unpacked_plus_rest_is_the_input<double>(count, 1e-14);
  }
}

TEST(SignBits, unpack_to_the_sign_times_the_mean_magnitude_of_the_block) {
  const std::int64_t count = kSignBlock + 3;
  const std::vector<double> input = normal_values<double>(count);
  std::vector<double> rest = input;
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(packed_sign_bytes(count)));
  pack_signs(rest.data(), count, packed.data());
  std::vector<double> sent(static_cast<std::size_t>(count), 0.0);
  add_signs(packed.data(), count, sent.data());
  for (std::int64_t block = 0; block < 2; ++block) {
    const std::int64_t begin = block * kSignBlock;
    const std::int64_t end = std::min(count, begin + kSignBlock);
    double mean = 0.0;
    for (std::int64_t i = begin; i < end; ++i) mean += std::fabs(input[i]) / static_cast<double>(end - begin);
    for (std::int64_t i = begin; i < end; ++i) ASSERT_NEAR(sent[i], std::copysign(mean, input[i]), 1e-6);
  }
}

TEST(SignBits, take_a_thirtieth_of_fp32) { EXPECT_LT(packed_sign_bytes(1 << 20) * 30, 4 << 20); }

TEST(SignBits, show_an_overflow_and_leave_nothing_of_it_behind) {
  std::vector<float> x(10, 1.0f);
  x[3] = std::numeric_limits<float>::infinity();
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(packed_sign_bytes(10)));
  pack_signs(x.data(), 10, packed.data());
  std::vector<float> sent(10, 0.0f);
  add_signs(packed.data(), 10, sent.data());
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(std::isfinite(sent[i]));
    EXPECT_EQ(x[i], 0.0f);
  }
}

}  // namespace
}  // namespace lockstep::kernels
