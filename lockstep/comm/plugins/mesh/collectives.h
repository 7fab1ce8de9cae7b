// Collectives over a Mesh. Every slice is reduced by one rank, in rank order, so results do not depend on timing and
// equal those of the local backend bit by bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/plugins/mesh/mesh.h"

namespace lockstep::comm {

class MeshCollectives {
 public:
  explicit MeshCollectives(Mesh& mesh) : mesh_(mesh) {}

  // One at a time, in the same order on all ranks.
  void run(const Operation& operation, Clock::time_point deadline);

 private:
  void all_reduce(const Operation& operation);
  void all_reduce_small(const Operation& operation);
  void reduce_scatter(const Operation& operation);
  void all_gather(const void* input, void* output, std::int64_t count, std::int64_t element);
  void broadcast(const Operation& operation);
  void all_to_all(const Operation& operation);
  void barrier();

  // Sends slice i of `input` to rank i, reduces what arrives for this rank into `output`, piece by piece; calls
  // reduced(first element within the slice, count) after each piece.
  template <typename Reduced>
  void reduce_slices(const Operation& operation, void* output, Reduced reduced);

  std::byte* scratch(std::int64_t bytes);
  std::uint64_t tag(int phase) const { return (counter_ << 2) | static_cast<std::uint64_t>(phase); }
  template <typename Visit>
  void each_peer(Visit visit) const;  // in an order that spreads the load

  Mesh& mesh_;
  std::uint64_t counter_ = 0;
  Clock::time_point deadline_;
  std::vector<std::byte> scratch_;
};

}  // namespace lockstep::comm
