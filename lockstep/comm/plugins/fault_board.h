// Finds out which rank really caused a failure.
//
// When a rank dies, its neighbours see a closed connection and give up; the next ranks see those give up. And when a
// rank stalls, all waits end at about the same time. So the ranks of a group write to the store what they saw,
// before they close their own connections: the first to see a lost peer names it for all, and a rank that stays silent
// while all others report a timeout is the one that stalls. Costs nothing until something fails.
#pragma once

#include <string>

#include "lockstep/comm/plugin_export.h"

namespace lockstep::comm {

class FaultBoard {
 public:
  FaultBoard(const HostStore& store, std::string place, int rank, int size)
      : store_(store), place_(std::move(place)), rank_(rank), size_(size) {}

  // The error to report instead of `error`. Blocks for a second or two at most, and never throws: without a store, or
  // with one that is gone, it is `error` itself.
  BackendError root_cause(const BackendError& error) noexcept;

 private:
  std::string key(const std::string& name) const { return place_ + "/fault/" + name; }
  BackendError agree(const BackendError& error);
  int silent_rank();

  const HostStore& store_;
  const std::string place_;
  const int rank_;
  const int size_;
};

}  // namespace lockstep::comm
