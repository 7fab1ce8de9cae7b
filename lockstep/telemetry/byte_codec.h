// Numbers as few bytes, independent of the machine, and a reader that damage cannot lead outside its bytes: what the
// values of the run store are made of.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::telemetry {

// Differences that wrap around, as damaged or hostile numbers may make them.
inline std::int64_t plus(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
inline std::int64_t minus(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}

// Seven bits a byte, lowest first.
inline void put_number(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

// Small negative numbers stay short.
inline void put_signed(std::string& out, std::int64_t value) {
  put_number(out, (static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63));
}

// Every bit of `value`, as what differs from `before`: a byte that counts the zero bytes at both ends, then the bytes
// between. One byte for a value that stays, five for one that was a float. (After Gorilla, VLDB 2015, in bytes.)
inline void put_real(std::string& out, double value, double before) {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(value) ^ std::bit_cast<std::uint64_t>(before);
  if (bits == 0) {
    out.push_back(0);
    return;
  }
  const int leading = std::countl_zero(bits) / 8, trailing = std::countr_zero(bits) / 8;
  const int count = 8 - leading - trailing;
  out.push_back(static_cast<char>(count << 4 | trailing));
  for (int i = 0; i < count; ++i) out.push_back(static_cast<char>(bits >> (8 * (trailing + i))));
}

// Throws UserError (bad input) where the bytes end too early or make no sense; `what` is named then.
class ByteReader {
 public:
  ByteReader(std::string_view data, const char* what)
      : at_(data.data()), end_(data.data() + data.size()), what_(what) {}

  std::uint64_t number() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(next());
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    damaged();
  }
  std::int64_t signed_number() {
    const std::uint64_t value = number();
    return static_cast<std::int64_t>(value >> 1) ^ -static_cast<std::int64_t>(value & 1);
  }
  template <class Integer>
  Integer small() {
    const std::int64_t value = signed_number();
    if (!std::in_range<Integer>(value)) damaged();
    return static_cast<Integer>(value);
  }
  double real(double before) {
    const auto control = static_cast<unsigned char>(next());
    const int count = control >> 4, trailing = control & 0xf;
    if (count + trailing > 8) damaged();
    std::uint64_t bits = 0;
    for (int i = 0; i < count; ++i) bits |= static_cast<std::uint64_t>(static_cast<unsigned char>(next())) << (8 * i);
    if (count > 0) bits <<= 8 * trailing;
    return std::bit_cast<double>(std::bit_cast<std::uint64_t>(before) ^ bits);
  }
  std::string_view bytes(std::uint64_t count) {
    if (count > left()) damaged();
    const std::string_view taken(at_, count);
    at_ += count;
    return taken;
  }
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }
  void expect_end() const {
    if (at_ != end_) damaged();
  }
  [[noreturn]] void damaged() const {
    throw bad_input(std::string(what_) + " of the run store are damaged", "the rest of the run is readable");
  }

 private:
  char next() {
    if (at_ == end_) damaged();
    return *at_++;
  }

  const char* at_;
  const char* end_;
  const char* what_;
};

}  // namespace lockstep::telemetry
