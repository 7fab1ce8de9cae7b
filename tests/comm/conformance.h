// The conformance suite: what every backend must do, checked from inside one rank. The same checks run on threads
// (conformance_test.cpp) and in processes (rank_program.cpp, also under mpirun).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::comm::testing {

// Collects what went wrong on one rank; a check goes on after a failure so that all ranks stay in step.
class Findings {
 public:
  void add(std::string text) {
    ++count_;
    if (texts_.size() < 5) texts_.push_back(std::move(text));
  }
  bool empty() const { return count_ == 0; }
  std::string to_string() const;

 private:
  int count_ = 0;
  std::vector<std::string> texts_;
};

struct Sizes {
  std::vector<std::int64_t> counts = {0, 1, 1023, 1 << 14};
  std::int64_t large = 0;  // one more size, for f32 only; 0: none
};

// Each is called by all ranks of the communicator, and covers every dtype (and every reduction) at every size of
// `counts`.
void check_all_reduce(Communicator& comm, const Sizes& sizes, Findings& findings);
void check_reduce_scatter(Communicator& comm, const Sizes& sizes, Findings& findings);
void check_all_gather(Communicator& comm, const Sizes& sizes, Findings& findings);
void check_broadcast(Communicator& comm, const Sizes& sizes, Findings& findings);
void check_all_to_all(Communicator& comm, const Sizes& sizes, Findings& findings);
void check_uneven_all_to_all(Communicator& comm, Findings& findings);
void check_send_and_recv(Communicator& comm, const Sizes& sizes, Findings& findings);
void check_barrier(Communicator& comm, Findings& findings);
void check_many_operations_in_flight(Communicator& comm, Findings& findings);
void check_subgroups(Communicator& comm, Findings& findings);
void check_traffic(Communicator& comm, Findings& findings);

void check_everything(Communicator& comm, const Sizes& sizes, Findings& findings);

}  // namespace lockstep::comm::testing
