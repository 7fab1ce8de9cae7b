// CRC-32C (Castagnoli), the checksum of iSCSI, ext4 and our checkpoints. Uses the SSE4.2 instruction when the
// processor has it, tables otherwise; both give the same value.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

// Checksum of `size` bytes. Pass the checksum of what came before as `seed` to continue:
// crc32c(b, m, crc32c(a, n)) is the checksum of a followed by b.
std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t seed = 0);

// The table version, whatever the processor has (tests compare the two).
std::uint32_t crc32c_with_tables(const void* data, std::size_t size, std::uint32_t seed = 0);

}  // namespace lockstep
