#include "lockstep/base/units.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <type_traits>

#include "expect_user_error.h"

namespace lockstep {
namespace {

using testing::user_error;

struct Case {
  const char* text;
  double value;
};

TEST(Units, parses_sizes) {
  const Case cases[] = {
      {"80GiB", 85899345920.0}, {"80GB", 80e9}, {"80 GB", 80e9}, {"512B", 512},  {"1.5KiB", 1536}, {"25MiB", 25 * kMiB},
      {"2TiB", 2 * kTiB},       {"1e3kB", 1e6}, {"0", 0},        {" 4MB ", 4e6}, {".5GB", 5e8}};
  for (const Case& c : cases) EXPECT_DOUBLE_EQ(parse_bytes(c.text), c.value) << c.text;
}

TEST(Units, parses_bandwidths_in_bits_and_bytes) {
  const Case cases[] = {{"400Gb/s", 50e9},        {"3.35TB/s", 3.35e12}, {"400Gbps", 50e9},
                        {"900GiB/s", 900 * kGiB}, {"100Gbit/s", 12.5e9}, {"0", 0}};
  for (const Case& c : cases) EXPECT_DOUBLE_EQ(parse_bytes_per_second(c.text), c.value) << c.text;
}

TEST(Units, parses_peaks) {
  EXPECT_DOUBLE_EQ(parse_flops_per_second("989.4TFLOPS"), 989.4e12);
  EXPECT_DOUBLE_EQ(parse_flops_per_second("1.98PFLOP/s"), 1.98e15);
}

TEST(Units, parses_counts_exactly) {
  EXPECT_EQ(parse_count("4T"), 4'000'000'000'000);
  EXPECT_EQ(parse_count("300B"), 300'000'000'000);
  EXPECT_EQ(parse_count("1e9"), 1'000'000'000);
  EXPECT_EQ(parse_count("1.3B"), 1'300'000'000);
  EXPECT_EQ(parse_count("128k"), 128'000);
  EXPECT_EQ(parse_count("0"), 0);
  EXPECT_EQ(parse_count("9007199254740993"), 9007199254740993);  // 2^53 + 1 is not a double
  EXPECT_EQ(parse_count("9223372036854775807"), INT64_MAX);
}

TEST(Units, parses_durations) {
  const Case cases[] = {{"10m", 600},  {"1h30m", 5400},  {"90s", 90},    {"500ms", 0.5}, {"2d", 172800}, {"40us", 4e-5},
                        {"5ns", 5e-9}, {"1h 30m", 5400}, {"1.5h", 5400}, {"0", 0},       {"5min", 300}};
  for (const Case& c : cases) EXPECT_DOUBLE_EQ(parse_seconds(c.text), c.value) << c.text;
}

TEST(Units, wrong_unit_names_the_right_ones) {
  const std::string size = user_error([] { parse_bytes("80Gb"); });
  EXPECT_HAS(size, "unknown unit `Gb`");
  EXPECT_HAS(size, "GiB");
  EXPECT_HAS(user_error([] { parse_seconds("10 minutes"); }), "ms, us, ns");
  EXPECT_HAS(user_error([] { parse_bytes_per_second("400GB"); }), "Gb/s");
  EXPECT_HAS(user_error([] { parse_count("4Q"); }), "trillion");
  EXPECT_HAS(user_error([] { parse_flops_per_second("989T"); }), "TFLOPS");
}

TEST(Units, missing_unit_is_refused_because_it_is_ambiguous) {
  EXPECT_HAS(user_error([] { parse_bytes("80"); }), "the unit is missing");
  EXPECT_HAS(user_error([] { parse_seconds("300"); }), "the unit is missing");
  EXPECT_HAS(user_error([] { parse_bytes_per_second("400"); }), "the unit is missing");
}

TEST(Units, nonsense_is_refused) {
  for (const char* text :
       {"", " ", "GiB", "-1GB", "nanGB", "infGB", "1e999GB", "0x10GB", "1GBGB", "1,5GB", "--", "1e"}) {
    user_error([&] { parse_bytes(text); });
    user_error([&] { parse_count(text); });
    user_error([&] { parse_seconds(text); });
  }
  for (const char* text : {"0.5", "1.0001k", "1e19", "99999999999999999999", "-3"})
    user_error([&] { parse_count(text); });
  for (const char* text : {"30m1h", "1h1h", "1h30"}) user_error([&] { parse_seconds(text); });
  for (const char* text : {"", "1.5", "1e3", "9223372036854775808", "+-1"}) user_error([&] { parse_integer(text); });
  for (const char* text : {"", "nan", "inf", "1.5x", "1e999"}) user_error([&] { parse_real(text); });
}

TEST(Units, the_place_leads_the_message) {
  EXPECT_EQ(user_error([] { parse_bytes("x", {"job.yaml", 3, 7}); }).rfind("job.yaml:3:7: ", 0), 0u);
}

TEST(Units, exact_text_reads_back_to_the_same_double) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 2000; ++i) {
    const double value = std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 60) - 80);
    EXPECT_EQ(parse_bytes(exact_bytes(value)), value);
    EXPECT_EQ(parse_seconds(exact_seconds(value)), value);
    EXPECT_EQ(parse_bytes_per_second(exact_bytes_per_second(value)), value);
    EXPECT_EQ(parse_flops_per_second(exact_flops_per_second(value)), value);
    EXPECT_EQ(parse_real(exact_real(-value)), -value);
  }
}

TEST(Units, formats_for_people) {
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(80 * kGiB), "80.0 GiB");
  EXPECT_EQ(format_bytes(12), "12 B");
  EXPECT_EQ(format_bytes(kMiB - 1), "1.00 MiB");
  EXPECT_EQ(format_count(124439808), "124 M");
  EXPECT_EQ(format_count(4e12), "4.00 T");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_rate(51234, "tokens"), "51.2 k tokens/s");
  EXPECT_EQ(format_rate(12.5e9, "B"), "12.5 GB/s");
  EXPECT_EQ(format_seconds(0.0401), "40.1 ms");
  EXPECT_EQ(format_seconds(5405), "1h 30m 5s");
  EXPECT_EQ(format_seconds(59.99), "1m 0s");
  EXPECT_EQ(format_seconds(86400 * 3 + 60), "3d 0h 1m");
  EXPECT_EQ(format_seconds(INFINITY), "?");
}

TEST(Units, quantities_combine_only_where_it_makes_sense) {
  static_assert(Bytes(100) / BytesPerSecond(50) == Seconds(2));
  static_assert(Flops(1e12) / FlopsPerSecond(1e12) + Seconds(1) == Seconds(2));
  static_assert(BytesPerSecond(3) * Seconds(2) == Bytes(6));
  static_assert(2.0 * Bytes(3) / Bytes(2) == 3.0);
  static_assert(Seconds(1) < Seconds(2));
  static_assert(!std::is_invocable_v<std::plus<>, Bytes, Seconds>);
  static_assert(!std::is_invocable_v<std::multiplies<>, Bytes, Bytes>);
  static_assert(!std::is_convertible_v<double, Bytes>);
}

}  // namespace
}  // namespace lockstep
