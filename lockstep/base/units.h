// Quantities with units: what users write in files and flags, and the strong types the cost formulas are made of.
//
// Parsers are locale-free, accept optional spaces between number and unit, refuse negative, infinite and missing
// values, and throw UserError (exit 2) that lists the right units. A number without a unit is refused wherever a unit
// is meaningful (only 0 may go without), because `80` of memory has been read as bytes, MB and GB by different tools.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep {

// A double with a dimension. Adding, scaling and comparing stay in the dimension; the products and quotients that make
// sense are declared below; anything else does not compile.
template <class Tag>
class Quantity {
 public:
  constexpr Quantity() = default;
  constexpr explicit Quantity(double value) : value_(value) {}
  constexpr double value() const { return value_; }

  constexpr Quantity& operator+=(Quantity other) { return value_ += other.value_, *this; }
  constexpr Quantity& operator-=(Quantity other) { return value_ -= other.value_, *this; }
  constexpr Quantity& operator*=(double factor) { return value_ *= factor, *this; }
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return Quantity(a.value_ + b.value_); }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return Quantity(a.value_ - b.value_); }
  friend constexpr Quantity operator*(Quantity a, double factor) { return Quantity(a.value_ * factor); }
  friend constexpr Quantity operator*(double factor, Quantity a) { return Quantity(a.value_ * factor); }
  friend constexpr Quantity operator/(Quantity a, double divisor) { return Quantity(a.value_ / divisor); }
  friend constexpr double operator/(Quantity a, Quantity b) { return a.value_ / b.value_; }
  friend constexpr auto operator<=>(Quantity a, Quantity b) = default;  // NOLINT(modernize-use-nullptr): generated

 private:
  double value_ = 0.0;
};

using Bytes = Quantity<struct BytesTag>;
using Seconds = Quantity<struct SecondsTag>;
using Flops = Quantity<struct FlopsTag>;  // floating-point operations, a multiply-add counts as two
using BytesPerSecond = Quantity<struct BytesPerSecondTag>;
using FlopsPerSecond = Quantity<struct FlopsPerSecondTag>;

constexpr Seconds operator/(Bytes a, BytesPerSecond b) { return Seconds(a.value() / b.value()); }
constexpr Seconds operator/(Flops a, FlopsPerSecond b) { return Seconds(a.value() / b.value()); }
constexpr BytesPerSecond operator/(Bytes a, Seconds b) { return BytesPerSecond(a.value() / b.value()); }
constexpr FlopsPerSecond operator/(Flops a, Seconds b) { return FlopsPerSecond(a.value() / b.value()); }
constexpr Bytes operator*(BytesPerSecond a, Seconds b) { return Bytes(a.value() * b.value()); }
constexpr Bytes operator*(Seconds a, BytesPerSecond b) { return b * a; }
constexpr Flops operator*(FlopsPerSecond a, Seconds b) { return Flops(a.value() * b.value()); }
constexpr Flops operator*(Seconds a, FlopsPerSecond b) { return b * a; }

inline constexpr double kKiB = 1024.0;
inline constexpr double kMiB = 1024.0 * kKiB;
inline constexpr double kGiB = 1024.0 * kMiB;
inline constexpr double kTiB = 1024.0 * kGiB;

// "80GiB", "80GB" (decimal), "512B". Letter case matters: `b` is a bit and is refused here.
double parse_bytes(std::string_view text, const SourcePlace& place = {});

// "3.35TB/s" (bytes), "400Gb/s" and "400Gbps" (bits, divided by 8), "900GiB/s". Result in bytes per second.
double parse_bytes_per_second(std::string_view text, const SourcePlace& place = {});

// "989TFLOPS", "989TFLOP/s", "1.98PFLOPS". Result in operations per second.
double parse_flops_per_second(std::string_view text, const SourcePlace& place = {});

// "4T", "300B", "7M", "128k" (powers of 1000), "1e9", "128". The result must be a whole number that fits in 63 bits.
std::int64_t parse_count(std::string_view text, const SourcePlace& place = {});

// "10m", "1h30m", "90s", "500ms", "2d", "40us", "5ns". Result in seconds.
double parse_seconds(std::string_view text, const SourcePlace& place = {});

// A plain finite number without unit, sign allowed: "3e-4".
double parse_real(std::string_view text, const SourcePlace& place = {});

// A plain whole number, sign allowed.
std::int64_t parse_integer(std::string_view text, const SourcePlace& place = {});

// For people: three or four significant digits. "1.50 GiB", "124 M", "1h 30m 5s", "12.5 GB/s", "40.1 ms".
std::string format_bytes(double bytes);
std::string format_seconds(double seconds);
std::string format_count(double count);
// `unit` is what is counted: format_rate(51234, "tokens") is "51.2 k tokens/s"; unit "B" gives "51.2 kB/s".
std::string format_rate(double per_second, std::string_view unit);

// For files: the shortest text that parses back to exactly this value, with its unit ("85899345920B", "0.5s").
std::string exact_bytes(double bytes);
std::string exact_bytes_per_second(double bytes_per_second);
std::string exact_flops_per_second(double flops_per_second);
std::string exact_seconds(double seconds);
std::string exact_real(double value);

}  // namespace lockstep
