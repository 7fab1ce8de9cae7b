#include "lockstep/comm/reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

namespace lockstep::comm {
namespace {

// Elements handled at a time, so that accumulators stay in the first-level cache.
constexpr std::int64_t kBlock = 2048;

struct F16 {
  std::uint16_t bits;
};
struct BF16 {
  std::uint16_t bits;
};

template <typename T>
T load(T value) {
  return value;
}
inline float load(F16 value) { return f16_to_float(value.bits); }
inline float load(BF16 value) { return bf16_to_float(value.bits); }

template <typename T>
using Accumulator = decltype(load(T{}));

template <typename T>
T store(Accumulator<T> value) {
  if constexpr (std::is_same_v<T, F16>) {
    return F16{float_to_f16(value)};
  } else if constexpr (std::is_same_v<T, BF16>) {
    return BF16{float_to_bf16(value)};
  } else {
    return value;
  }
}

template <ReduceOp op, typename A>
A combine(A a, A b) {
  if constexpr (op == ReduceOp::kMax) return b > a ? b : a;
  if constexpr (op == ReduceOp::kMin) return b < a ? b : a;
  if constexpr (std::is_integral_v<A>) {
    // Unsigned, so that wrapping around is defined.
    using Unsigned = std::make_unsigned_t<A>;
    return static_cast<A>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  } else {
    return a + b;
  }
}

template <typename T, ReduceOp op>
void pair_loop(void* out, const void* a, const void* b, std::int64_t count) {
  auto* result = static_cast<T*>(out);
  const auto* left = static_cast<const T*>(a);
  const auto* right = static_cast<const T*>(b);
  for (std::int64_t i = 0; i < count; ++i) {
    result[i] = store<T>(combine<op, Accumulator<T>>(load(left[i]), load(right[i])));
  }
}

template <typename T, ReduceOp op>
void ordered_loop(void* out, const std::vector<const void*>& inputs, std::int64_t count) {
  Accumulator<T> block[kBlock];
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t length = std::min(kBlock, count - begin);
    const T* first = static_cast<const T*>(inputs[0]) + begin;
    for (std::int64_t i = 0; i < length; ++i) block[i] = load(first[i]);
    for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
      const T* next = static_cast<const T*>(inputs[rank]) + begin;
      for (std::int64_t i = 0; i < length; ++i) block[i] = combine<op, Accumulator<T>>(block[i], load(next[i]));
    }
    T* result = static_cast<T*>(out) + begin;
    for (std::int64_t i = 0; i < length; ++i) result[i] = store<T>(block[i]);
  }
}

// Calls visit(type tag, op tag) for the run-time dtype and op.
template <typename Visit>
void dispatch(DType dtype, ReduceOp op, Visit visit) {
  const auto with_op = [&](auto type) {
    switch (op) {
      case ReduceOp::kSum:
        return visit(type, std::integral_constant<ReduceOp, ReduceOp::kSum>{});
      case ReduceOp::kMax:
        return visit(type, std::integral_constant<ReduceOp, ReduceOp::kMax>{});
      case ReduceOp::kMin:
        return visit(type, std::integral_constant<ReduceOp, ReduceOp::kMin>{});
    }
  };
  switch (dtype) {
    case DType::kF64:
      return with_op(std::type_identity<double>{});
    case DType::kF32:
      return with_op(std::type_identity<float>{});
    case DType::kF16:
      return with_op(std::type_identity<F16>{});
    case DType::kBF16:
      return with_op(std::type_identity<BF16>{});
    case DType::kI64:
      return with_op(std::type_identity<std::int64_t>{});
    case DType::kI32:
      return with_op(std::type_identity<std::int32_t>{});
    case DType::kU8:
      return with_op(std::type_identity<std::uint8_t>{});
  }
}

}  // namespace

// Without branches on the value, so that the compiler can vectorise the loops above. The idea (scale the exponent by a
// multiplication that also renormalises subnormals) is F. Giesen's, "half to float done quick".
float f16_to_float(std::uint16_t bits) {
  const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fff) << 13;
  float scaled = std::bit_cast<float>(magnitude) * std::bit_cast<float>(std::uint32_t{(254 - 15) << 23});
  const std::uint32_t special = magnitude >= (0x7c00u << 13) ? 0x7f800000u : 0u;  // infinity or NaN
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special | sign);
}

std::uint16_t float_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  const std::uint32_t magnitude = bits & 0x7fffffff;
  // Subnormal results: adding 0.5 aligns the mantissa so that the hardware rounds to nearest even at the right bit.
  const std::uint32_t small = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const std::uint32_t odd = (magnitude >> 13) & 1;
  const std::uint32_t normal = (magnitude - ((127 - 15) << 23) + 0xfff + odd) >> 13;
  const std::uint32_t finite = magnitude < (113u << 23) ? small : normal;
  const std::uint32_t overflow = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  return static_cast<std::uint16_t>((magnitude >= ((127u + 16) << 23) ? overflow : finite) | sign);
}

float bf16_to_float(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  return static_cast<std::uint16_t>(nan ? (bits >> 16) | 0x40 : rounded);
}

void reduce_pair(void* out, const void* a, const void* b, std::int64_t count, DType dtype, ReduceOp op) {
  dispatch(dtype, op, [&](auto type, auto reduction) {
    pair_loop<typename decltype(type)::type, decltype(reduction)::value>(out, a, b, count);
  });
}

void reduce_in_order(void* out, const std::vector<const void*>& inputs, std::int64_t count, DType dtype, ReduceOp op) {
  if (inputs.size() == 1) {
    if (out != inputs[0]) std::memcpy(out, inputs[0], static_cast<std::size_t>(count * size_of(dtype)));
    return;
  }
  if (inputs.size() == 2) return reduce_pair(out, inputs[0], inputs[1], count, dtype, op);
  dispatch(dtype, op, [&](auto type, auto reduction) {
    ordered_loop<typename decltype(type)::type, decltype(reduction)::value>(out, inputs, count);
  });
}

Slice slice_of(std::int64_t count, int parts, int index) {
  const std::int64_t base = count / parts;
  const std::int64_t extra = count % parts;
  return {index * base + std::min<std::int64_t>(index, extra), base + (index < extra ? 1 : 0)};
}

}  // namespace lockstep::comm
