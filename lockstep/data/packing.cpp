#include "lockstep/data/packing.h"

#include <algorithm>
#include <bit>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

// A binary tree over the free room of n bins, each node the most of its two children: the first bin with enough room
// is found on the way down.
class RoomTree {
 public:
  RoomTree(std::size_t bins, std::int64_t capacity)
      : leaves_(std::bit_ceil(std::max<std::size_t>(bins, 1))), room_(2 * leaves_, capacity) {}

  // The first bin with room for `length`, which is then taken.
  std::size_t take(std::int64_t length) {
    std::size_t node = 1;
    while (node < leaves_) node = room_[2 * node] >= length ? 2 * node : 2 * node + 1;
    const std::size_t bin = node - leaves_;
    room_[node] -= length;
    for (node /= 2; node >= 1; node /= 2) room_[node] = std::max(room_[2 * node], room_[2 * node + 1]);
    return bin;
  }

 private:
  std::size_t leaves_;
  std::vector<std::int64_t> room_;  // node 1 is the root; the leaves follow the inner nodes
};

}  // namespace

std::vector<std::vector<std::int64_t>> pack_first_fit(std::span<const std::int64_t> lengths, std::int64_t capacity) {
  RoomTree rooms(lengths.size(), capacity);  // as many bins as items: there is always room
  std::vector<std::vector<std::int64_t>> bins;
  for (std::size_t item = 0; item < lengths.size(); ++item) {
    LOCKSTEP_ASSERT(lengths[item] >= 1 && lengths[item] <= capacity, "an item does not fit into a bin");
    const std::size_t bin = rooms.take(lengths[item]);
    if (bin >= bins.size()) bins.resize(bin + 1);
    bins[bin].push_back(static_cast<std::int64_t>(item));
  }
  return bins;
}

}  // namespace lockstep::data
