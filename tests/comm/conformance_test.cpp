// One suite for every backend whose ranks can be threads of one process: backend x ranks 1..8.
#include "conformance.h"

#include <gtest/gtest.h>

#include <mutex>

#include "worlds.h"

namespace lockstep::comm::testing {
namespace {

struct Case {
  std::string backend;
  int ranks;
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.backend << " with " << one.ranks << " ranks"; }

class Conformance : public ::testing::TestWithParam<Case> {
 protected:
  void check(const std::function<void(Communicator&, Findings&)>& body) {
    const auto thrown = run_ranks({GetParam().backend, GetParam().ranks}, [&](Communicator& comm) {
      Findings findings;
      body(comm, findings);
      comm.barrier().wait();
      const std::lock_guard lock(mutex_);
      EXPECT_TRUE(findings.empty()) << findings.to_string();
    });
    for (const auto& one : thrown) {
      const auto fault = fault_of(one);
      EXPECT_FALSE(fault.has_value()) << fault->what();
    }
  }

  // Eight ranks on a small machine are slow enough at a quarter of the size; it still is cut into several pieces.
  const Sizes sizes_{.large = GetParam().ranks <= 3 ? 1 << 20 : 1 << 18};
  std::mutex mutex_;
};

TEST_P(Conformance, all_reduce_gives_every_rank_the_reduction) {
  check([&](Communicator& comm, Findings& findings) { check_all_reduce(comm, sizes_, findings); });
}

TEST_P(Conformance, reduce_scatter_gives_each_rank_its_slice) {
  check([&](Communicator& comm, Findings& findings) { check_reduce_scatter(comm, sizes_, findings); });
}

TEST_P(Conformance, all_gather_collects_the_slices_in_rank_order) {
  check([&](Communicator& comm, Findings& findings) { check_all_gather(comm, sizes_, findings); });
}

TEST_P(Conformance, broadcast_copies_from_the_root) {
  check([&](Communicator& comm, Findings& findings) { check_broadcast(comm, sizes_, findings); });
}

TEST_P(Conformance, all_to_all_exchanges_equal_slices) {
  check([&](Communicator& comm, Findings& findings) { check_all_to_all(comm, sizes_, findings); });
}

TEST_P(Conformance, all_to_all_exchanges_uneven_slices) {
  check([&](Communicator& comm, Findings& findings) { check_uneven_all_to_all(comm, findings); });
}

TEST_P(Conformance, messages_arrive_in_order_even_when_everybody_sends_first) {
  check([&](Communicator& comm, Findings& findings) { check_send_and_recv(comm, sizes_, findings); });
}

TEST_P(Conformance, nobody_leaves_a_barrier_before_the_last_one_came) {
  check([&](Communicator& comm, Findings& findings) { check_barrier(comm, findings); });
}

TEST_P(Conformance, many_operations_can_be_in_flight) {
  check([&](Communicator& comm, Findings& findings) { check_many_operations_in_flight(comm, findings); });
}

TEST_P(Conformance, subgroups_work_apart_from_each_other) {
  check([&](Communicator& comm, Findings& findings) { check_subgroups(comm, findings); });
}

TEST_P(Conformance, payload_bytes_follow_their_definition) {
  check([&](Communicator& comm, Findings& findings) { check_traffic(comm, findings); });
}

std::vector<Case> cases() {
  std::vector<Case> all;
  std::vector<std::string> backends = {"local", "tcp", "tcp_apart"};
#ifdef LOCKSTEP_TEST_GLOO
  backends.insert(backends.end(), {"gloo", "gloo_apart"});
#endif
  for (const auto& backend : backends) {
    for (int ranks = 1; ranks <= 8; ++ranks) all.push_back({backend, ranks});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Backends, Conformance, ::testing::ValuesIn(cases()),
                         [](const auto& each) { return each.param.backend + "_" + std::to_string(each.param.ranks); });

}  // namespace
}  // namespace lockstep::comm::testing
