#include "lockstep/checkpoint/copy_values.h"

#include <algorithm>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace lockstep::checkpoint {
namespace {

template <class Word>
bool holds_exponent(const unsigned char* values, std::size_t bytes, Word exponent) {
  bool found = false;
  for (std::size_t i = 0; i + sizeof(Word) <= bytes; i += sizeof(Word)) {
    Word value;
    std::memcpy(&value, values + i, sizeof(Word));
    found |= (value & exponent) == exponent;
  }
  return found;
}

bool all_finite(const unsigned char* values, std::size_t bytes, ExponentBits exponent) {
  if (exponent.bits == 0) return true;
  switch (exponent.width) {
    case 2:
      return !holds_exponent(values, bytes, static_cast<std::uint16_t>(exponent.bits));
    case 4:
      return !holds_exponent(values, bytes, static_cast<std::uint32_t>(exponent.bits));
    default:
      return !holds_exponent(values, bytes, exponent.bits);
  }
}

bool copy_cached(unsigned char* to, const unsigned char* from, std::size_t bytes, ExponentBits exponent) {
  std::memcpy(to, from, bytes);
  return all_finite(to, bytes, exponent);
}

#ifdef __SSE2__

constexpr std::size_t kLane = 16;

// Equal, in any 16 or 32 bits: not finite.
struct Pattern {
  __m128i mask, found;
};

// A double is told by its upper half; the lower one is compared with what the mask cannot leave.
Pattern pattern_of(ExponentBits exponent) {
  if (exponent.bits == 0) return {_mm_setzero_si128(), _mm_set1_epi32(1)};
  if (exponent.width == 8) {
    const int upper = static_cast<int>(exponent.bits >> 32);
    return {_mm_set_epi32(upper, 0, upper, 0), _mm_set_epi32(upper, 1, upper, 1)};
  }
  const __m128i both = exponent.width == 2 ? _mm_set1_epi16(static_cast<short>(exponent.bits))
                                           : _mm_set1_epi32(static_cast<int>(exponent.bits));
  return {both, both};
}

template <bool kHalves>
bool stream(unsigned char* to, const unsigned char* from, std::size_t lanes, Pattern pattern) {
  const auto look = [&](__m128i value) {
    const __m128i masked = _mm_and_si128(value, pattern.mask);
    if constexpr (kHalves) return _mm_cmpeq_epi16(masked, pattern.found);
    return _mm_cmpeq_epi32(masked, pattern.found);
  };
  __m128i found = _mm_setzero_si128();
  const auto* source = reinterpret_cast<const __m128i*>(from);
  auto* target = reinterpret_cast<__m128i*>(to);
  std::size_t i = 0;
  for (; i + 4 <= lanes; i += 4) {
    const __m128i a = _mm_loadu_si128(source + i), b = _mm_loadu_si128(source + i + 1);
    const __m128i c = _mm_loadu_si128(source + i + 2), d = _mm_loadu_si128(source + i + 3);
    _mm_stream_si128(target + i, a);
    _mm_stream_si128(target + i + 1, b);
    _mm_stream_si128(target + i + 2, c);
    _mm_stream_si128(target + i + 3, d);
    found = _mm_or_si128(found, _mm_or_si128(_mm_or_si128(look(a), look(b)), _mm_or_si128(look(c), look(d))));
  }
  for (; i < lanes; ++i) {
    const __m128i value = _mm_loadu_si128(source + i);
    _mm_stream_si128(target + i, value);
    found = _mm_or_si128(found, look(value));
  }
  _mm_sfence();
  return _mm_movemask_epi8(found) == 0;
}

#endif

}  // namespace

ExponentBits exponent_bits(torch::ScalarType dtype) {
  switch (dtype) {
    case torch::kFloat64:
      return {8, 0x7ff0000000000000U};
    case torch::kFloat32:
      return {4, 0x7f800000U};
    case torch::kBFloat16:
      return {2, 0x7f80U};
    case torch::kFloat16:
      return {2, 0x7c00U};
    default:
      return {};
  }
}

bool copy_values(unsigned char* to, const unsigned char* from, std::size_t bytes, ExponentBits exponent) {
#ifdef __SSE2__
  const std::size_t head = std::min(bytes, (kLane - reinterpret_cast<std::uintptr_t>(to) % kLane) % kLane);
  const std::size_t lanes = (bytes - head) / kLane, middle = lanes * kLane;
  const Pattern pattern = pattern_of(exponent);
  bool finite = copy_cached(to, from, head, exponent);
  finite &= exponent.width == 2 && exponent.bits != 0 ? stream<true>(to + head, from + head, lanes, pattern)
                                                      : stream<false>(to + head, from + head, lanes, pattern);
  return copy_cached(to + head + middle, from + head + middle, bytes - head - middle, exponent) && finite;
#else
  return copy_cached(to, from, bytes, exponent);
#endif
}

}  // namespace lockstep::checkpoint
