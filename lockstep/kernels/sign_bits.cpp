#include "lockstep/kernels/sign_bits.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lockstep/kernels/multiversion.h"
#include "lockstep/kernels/parallel_blocks.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t kBitsPerByte = 8;
constexpr std::int64_t kBlockBytes = kSignBlock / kBitsPerByte;
constexpr std::int64_t kBlocksPerTask = 16;

std::int64_t blocks_of(std::int64_t count) { return (count + kSignBlock - 1) / kSignBlock; }

// Fixed lanes, as in squared_sum(): the same bits with every vector width.
template <typename T>
LOCKSTEP_INLINE float mean_magnitude(const T* x, std::int64_t n) {
  constexpr int kLanes = 16;
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += static_cast<double>(std::fabs(x[i + lane]));
  }
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += static_cast<double>(std::fabs(x[i]));
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return static_cast<float>(lanes[0] / static_cast<double>(n));
}

template <typename T>
LOCKSTEP_INLINE float pack_block(T* __restrict x, std::int64_t n, std::uint8_t* __restrict bits) {
  const float scale = mean_magnitude(x, n);
  const T step = static_cast<T>(scale);
  for (std::int64_t i = 0; i < n; i += kBitsPerByte) {
    const std::int64_t width = std::min(kBitsPerByte, n - i);
    unsigned byte = 0;
    for (std::int64_t k = 0; k < width; ++k) byte |= static_cast<unsigned>(x[i + k] >= T(0)) << k;
    bits[i / kBitsPerByte] = static_cast<std::uint8_t>(byte);
  }
  if (!std::isfinite(scale)) {
    std::fill(x, x + n, T(0));
    return scale;
  }
  for (std::int64_t i = 0; i < n; ++i) x[i] -= x[i] >= T(0) ? step : -step;
  return scale;
}

template <typename T>
LOCKSTEP_INLINE void add_block(const std::uint8_t* __restrict bits, std::int64_t n, float scale, T* __restrict sum) {
  const T step = static_cast<T>(scale);
  for (std::int64_t i = 0; i < n; ++i) {
    const unsigned bit = (static_cast<unsigned>(bits[i / kBitsPerByte]) >> (i % kBitsPerByte)) & 1u;
    sum[i] += bit ? step : -step;
  }
}

LOCKSTEP_MULTIVERSION float pack_one(float* x, std::int64_t n, std::uint8_t* bits) { return pack_block(x, n, bits); }
LOCKSTEP_MULTIVERSION float pack_one(double* x, std::int64_t n, std::uint8_t* bits) { return pack_block(x, n, bits); }
LOCKSTEP_MULTIVERSION void add_one(const std::uint8_t* bits, std::int64_t n, float scale, float* sum) {
  add_block(bits, n, scale, sum);
}
LOCKSTEP_MULTIVERSION void add_one(const std::uint8_t* bits, std::int64_t n, float scale, double* sum) {
  add_block(bits, n, scale, sum);
}

// Calls run(block, begin, length) for every block, a few blocks per task.
template <typename Run>
void over_blocks(std::int64_t n, const Run& run) {
  const std::int64_t blocks = blocks_of(n);
  parallel_blocks((blocks + kBlocksPerTask - 1) / kBlocksPerTask, [&](std::int64_t task) {
    const std::int64_t stop = std::min(blocks, (task + 1) * kBlocksPerTask);
    for (std::int64_t block = task * kBlocksPerTask; block < stop; ++block) {
      const std::int64_t begin = block * kSignBlock;
      run(block, begin, std::min(kSignBlock, n - begin));
    }
  });
}

template <typename T>
void pack_all(T* x, std::int64_t n, std::uint8_t* packed) {
  std::uint8_t* bits = packed + blocks_of(n) * static_cast<std::int64_t>(sizeof(float));
  over_blocks(n, [&](std::int64_t block, std::int64_t begin, std::int64_t length) {
    const float scale = pack_one(x + begin, length, bits + block * kBlockBytes);
    std::memcpy(packed + block * static_cast<std::int64_t>(sizeof(float)), &scale, sizeof(float));
  });
}

template <typename T>
void add_all(const std::uint8_t* packed, std::int64_t n, T* sum) {
  const std::uint8_t* bits = packed + blocks_of(n) * static_cast<std::int64_t>(sizeof(float));
  over_blocks(n, [&](std::int64_t block, std::int64_t begin, std::int64_t length) {
    float scale;
    std::memcpy(&scale, packed + block * static_cast<std::int64_t>(sizeof(float)), sizeof(float));
    add_one(bits + block * kBlockBytes, length, scale, sum + begin);
  });
}

}  // namespace

std::int64_t packed_sign_bytes(std::int64_t count) {
  return blocks_of(count) * static_cast<std::int64_t>(sizeof(float)) + (count + kBitsPerByte - 1) / kBitsPerByte;
}

void pack_signs(float* x, std::int64_t n, std::uint8_t* packed) { pack_all(x, n, packed); }
void pack_signs(double* x, std::int64_t n, std::uint8_t* packed) { pack_all(x, n, packed); }
void add_signs(const std::uint8_t* packed, std::int64_t n, float* sum) { add_all(packed, n, sum); }
void add_signs(const std::uint8_t* packed, std::int64_t n, double* sum) { add_all(packed, n, sum); }

}  // namespace lockstep::kernels
