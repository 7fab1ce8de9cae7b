// Reductions on raw memory, argument checks, the plugin loader.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/local.h"
#include "lockstep/comm/reduce.h"
#include "lockstep/elastic/store.h"

namespace lockstep::comm {
namespace {

TEST(HalfPrecision, f16_survives_the_way_through_float) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = f16_to_float(half);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(f16_to_float(float_to_f16(value)))) << bits;
    } else {
      ASSERT_EQ(float_to_f16(value), half) << bits;
    }
  }
}

TEST(HalfPrecision, bf16_survives_the_way_through_float) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = bf16_to_float(half);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value)))) << bits;
    } else {
      ASSERT_EQ(float_to_bf16(value), half) << bits;
    }
  }
}

TEST(HalfPrecision, f16_has_the_values_of_ieee_754) {
  EXPECT_EQ(f16_to_float(0x3c00), 1.0f);
  EXPECT_EQ(f16_to_float(0xc000), -2.0f);
  EXPECT_EQ(f16_to_float(0x7bff), 65504.0f);
  EXPECT_EQ(f16_to_float(0x0001), 0x1p-24f);
  EXPECT_EQ(f16_to_float(0x7c00), std::numeric_limits<float>::infinity());
}

TEST(HalfPrecision, rounding_goes_to_the_nearest_even) {
  EXPECT_EQ(float_to_f16(1.0f + 0x1p-11f), 0x3c00);             // half-way: to even
  EXPECT_EQ(float_to_f16(1.0f + 3 * 0x1p-11f), 0x3c02);         // half-way: to even, upwards
  EXPECT_EQ(float_to_f16(1.0f + 0x1p-11f + 0x1p-20f), 0x3c01);  // above half-way
  EXPECT_EQ(float_to_f16(65520.0f), 0x7c00);                    // too large: infinity
  EXPECT_EQ(float_to_f16(0x1p-25f), 0x0000);                    // half the smallest subnormal: to even
  EXPECT_EQ(float_to_f16(0x1.8p-25f), 0x0001);
  EXPECT_EQ(float_to_bf16(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(float_to_bf16(1.0f + 3 * 0x1p-8f), 0x3f82);
}

TEST(Reduce, bf16_is_accumulated_in_float_and_rounded_once) {
  // 256 + 1 + 1 + ...: rounded after each step the ones would be lost (bf16 has 8 bits of precision).
  std::vector<std::uint16_t> big = {float_to_bf16(256.0f)};
  std::vector<std::uint16_t> one = {float_to_bf16(1.0f)};
  std::vector<const void*> inputs = {big.data(), one.data(), one.data(), one.data(), one.data()};
  std::uint16_t result = 0;
  reduce_in_order(&result, inputs, 1, DType::kBF16, ReduceOp::kSum);
  EXPECT_EQ(bf16_to_float(result), 260.0f);
}

TEST(Reduce, slices_cover_everything_once_and_differ_by_at_most_one) {
  for (std::int64_t count : {0, 1, 7, 8, 1000, 1001}) {
    std::int64_t next = 0;
    for (int index = 0; index < 8; ++index) {
      const Slice slice = slice_of(count, 8, index);
      EXPECT_EQ(slice.begin, next);
      EXPECT_GE(slice.count, count / 8);
      EXPECT_LE(slice.count, count / 8 + 1);
      next += slice.count;
    }
    EXPECT_EQ(next, count);
  }
}

class Arguments : public ::testing::Test {
 protected:
  // Expects bad_input, that its text has `part`, and that the group still works afterwards.
  void expect_refused(const std::function<void()>& call, const std::string& part) {
    try {
      call();
      FAIL() << "was accepted";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
    comm_.barrier().wait();
  }

  LocalWorld world_{1};
  Communicator comm_ = world_.communicator(0, "dp");
  float data_[4] = {};
};

TEST_F(Arguments, a_root_outside_the_group_is_refused) {
  expect_refused([&] { comm_.broadcast({data_, 4, DType::kF32}, 1); }, "rank 1 is not in a group of 1");
}
TEST_F(Arguments, a_message_to_oneself_is_refused) {
  expect_refused([&] { comm_.send({data_, 4, DType::kF32}, 0); }, "addresses itself");
}
TEST_F(Arguments, counts_that_do_not_divide_are_refused) {
  expect_refused([&] { comm_.reduce_scatter({data_, 4, DType::kF32}, {data_, 3, DType::kF32}); }, "input of 4");
  expect_refused([&] { comm_.all_gather({data_, 4, DType::kF32}, {data_, 3, DType::kF32}); }, "output of 3");
}
TEST_F(Arguments, a_null_pointer_with_elements_is_refused) {
  expect_refused([&] { comm_.all_reduce({nullptr, 4, DType::kF32}); }, "no memory for 4 elements");
}
TEST_F(Arguments, a_negative_count_is_refused) {
  expect_refused([&] { comm_.all_reduce({data_, -1, DType::kF32}); }, "count -1");
}
TEST_F(Arguments, mixed_dtypes_are_refused) {
  expect_refused([&] { comm_.all_gather({data_, 4, DType::kF32}, {data_, 4, DType::kI32}); }, "f32 and output i32");
}
TEST_F(Arguments, an_unknown_dtype_is_refused) {
  expect_refused([&] { comm_.all_reduce({data_, 1, static_cast<DType>(99)}); }, "dtype 99");
}
TEST_F(Arguments, all_to_all_counts_that_do_not_add_up_are_refused) {
  expect_refused([&] { comm_.all_to_all({data_, 4, DType::kF32}, {3}, {data_, 4, DType::kF32}, {4}); }, "send counts");
}
TEST_F(Arguments, a_subgroup_without_this_rank_is_refused) {
  expect_refused([&] { comm_.subgroup({}, "none"); }, "sub-group \"none\"");
  expect_refused([&] { comm_.subgroup({0, 0}, "twice"); }, "named twice");
}

TEST(Plugins, a_backend_without_a_plugin_is_an_environment_error_with_a_fix) {
  try {
    open_communicator({.backend = "carrier_pigeon"});
    FAIL() << "was opened";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
    EXPECT_NE(std::string(error.what()).find("liblockstep_comm_carrier_pigeon.so"), std::string::npos);
    EXPECT_FALSE(error.fix().empty());
  }
}

TEST(Plugins, a_file_that_is_no_plugin_is_an_environment_error) {
  char folder[] = "/tmp/lockstep-plugin-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::filesystem::path file = std::filesystem::path(folder) / "liblockstep_comm_gloo.so";
  std::FILE* out = std::fopen(file.c_str(), "w");
  ASSERT_NE(out, nullptr);
  std::fputs("not a library", out);
  std::fclose(out);
  try {
    open_communicator({.backend = "gloo", .plugin_folders = {folder}});
    FAIL() << "was opened";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
    EXPECT_NE(std::string(error.what()).find(file.string()), std::string::npos) << error.what();
  }
  std::filesystem::remove_all(folder);
}

TEST(FlightRecord, tells_the_last_operations_and_how_they_ended) {
  LocalWorld world(1);
  Communicator comm = world.communicator(0, "dp");
  float value = 1;
  for (int i = 0; i < 100; ++i) comm.all_reduce({&value, 1, DType::kF32}).wait();
  const auto record = comm.flight_record();
  ASSERT_EQ(record.size(), 64u);
  EXPECT_EQ(record.front().sequence, 37);
  EXPECT_EQ(record.back().sequence, 100);
  EXPECT_EQ(record.back().state, FlightEntry::State::kDone);
  EXPECT_EQ(record.back().kind, OpKind::kAllReduce);
  EXPECT_EQ(record.back().bytes, 4);
}

}  // namespace
}  // namespace lockstep::comm
