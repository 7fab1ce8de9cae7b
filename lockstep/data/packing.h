// First-fit packing: lengths into bins of equal capacity.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::data {

// The bins, each as the places of its items in `lengths`. Every item goes, in order, into the first bin that still has
// room for it (Johnson 1973: never more than 1.7 x the best possible number of bins), so the result depends on the
// lengths alone. O(n log n). Every length is 1 to `capacity`.
std::vector<std::vector<std::int64_t>> pack_first_fit(std::span<const std::int64_t> lengths, std::int64_t capacity);

}  // namespace lockstep::data
