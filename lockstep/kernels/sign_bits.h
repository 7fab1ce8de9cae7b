// One bit per number: the sign, with one scale per block. The inner loops of 1-bit gradient compression (CPU).
//
// A packed array of n numbers is `packed_sign_bytes(n)` bytes: one fp32 scale per kSignBlock numbers, then the bits,
// block by block, each block's bits padded to whole bytes; bit 1 means not negative. The scale is the block's mean
// magnitude, which makes the squared error of sign * scale smallest.
#pragma once

#include <cstdint>

namespace lockstep::kernels {

inline constexpr std::int64_t kSignBlock = 1024;

std::int64_t packed_sign_bytes(std::int64_t count);

// Packs x[0, n) and replaces x by what packing lost: x <- x - unpacked(x). A block with NaN or infinity unpacks to NaN
// or infinity throughout and leaves nothing behind (x <- 0), so that one bad step does not poison the later ones.
// Threads as parallel_blocks().
void pack_signs(float* x, std::int64_t n, std::uint8_t* packed);
void pack_signs(double* x, std::int64_t n, std::uint8_t* packed);

// sum[i] <- sum[i] + unpacked[i].
void add_signs(const std::uint8_t* packed, std::int64_t n, float* sum);
void add_signs(const std::uint8_t* packed, std::int64_t n, double* sum);

}  // namespace lockstep::kernels
