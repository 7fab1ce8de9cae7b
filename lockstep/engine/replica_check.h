// ReplicaCheck: do ranks that hold the same weights and optimizer state still hold the same bits? Memory and processors
// fail silently; a replica that differs from its peers is found by comparing checksums, and named.
//
//   ReplicaCheck check(world);
//   ReplicaReport report = check.compare(executor);        // collective
//   if (!report.agrees()) ...                               // report.odd_ranks, report.tensor
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/engine/executor.h"

namespace lockstep::engine {

// The same on every rank but for bytes and seconds.
struct ReplicaReport {
  std::string tensor;          // the first that differs; "" where all agree
  std::vector<int> holders;    // ranks that hold it
  std::vector<int> odd_ranks;  // those that most of the other holders of something contradict; empty: nobody knows
  std::int64_t tensors = 0;    // of this rank that others hold too
  double bytes = 0.0;          // of them
  double seconds = 0.0;
  bool agrees() const { return tensor.empty(); }
};

// Belongs to one rank's thread.
class ReplicaCheck {
 public:
  explicit ReplicaCheck(comm::Communicator world) : world_(std::move(world)) {}
  // Collective. Who holds what is found out once: the executor's pieces must be the same in every call. A checksum is
  // CRC-32C in host memory, and the sum of the words on a device.
  ReplicaReport compare(const Executor& executor);

 private:
  void learn(const checkpoint::CheckpointPart& part);
  ReplicaReport judge(const std::vector<std::int64_t>& sums, const checkpoint::CheckpointPart& part);

  comm::Communicator world_;
  bool learnt_ = false;
  std::int64_t most_ = 0;           // pieces of the rank that has the most
  std::vector<std::int64_t> keys_;  // [world, most_]: which elements; 0 where there is none
  std::vector<char> shared_;        // own pieces that others hold too
};

// What to tell people: which rank on which host holds another value of what. `hosts` by rank.
std::string describe(const ReplicaReport& report, std::int64_t step, const std::vector<std::string>& hosts);

}  // namespace lockstep::engine
