// What happens when something goes wrong, for backends whose ranks can be threads. Processes: gloo_processes_test.cpp.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "worlds.h"

namespace lockstep::comm::testing {
namespace {

// What fails must fail before this: a test that waited for it would be ended by ctest.
constexpr milliseconds kHours(36'000'000);

class Failure : public ::testing::TestWithParam<std::string> {
 protected:
  std::vector<std::exception_ptr> run(int size, milliseconds timeout, const std::function<void(Communicator&)>& body) {
    return run_ranks({GetParam(), size, timeout}, body);
  }
  static Work all_reduce(Communicator& comm, std::vector<float>& data) {
    return comm.all_reduce({data.data(), static_cast<std::int64_t>(data.size()), DType::kF32});
  }
};

TEST_P(Failure, a_rank_that_leaves_is_named_to_all_others_at_once) {
  const auto thrown = run(4, kHours, [&](Communicator& comm) {
    std::vector<float> data(100'000, 1.0f);
    all_reduce(comm, data).wait();
    if (comm.rank() == 2) return;
    all_reduce(comm, data).wait();
  });
  for (const int rank : {0, 1, 3}) {
    const auto fault = fault_of(thrown[static_cast<std::size_t>(rank)]);
    ASSERT_TRUE(fault.has_value()) << "rank " << rank;
    EXPECT_EQ(fault->kind(), FaultKind::kPeerLost) << fault->what();
    EXPECT_EQ(fault->rank(), 2) << fault->what();
    EXPECT_NE(std::string(fault->what()).find("all_reduce #2 of 390.6 KiB in group \"world\": rank 2 "),
              std::string::npos)
        << fault->what();
  }
}

TEST_P(Failure, a_rank_that_stalls_is_a_timeout_that_names_it) {
  std::atomic<int> failed{0};
  const auto thrown = run(3, milliseconds(3000), [&](Communicator& comm) {
    std::vector<float> data(1000, 1.0f);
    all_reduce(comm, data).wait();
    if (comm.rank() == 1) {
      while (failed < 2) std::this_thread::sleep_for(milliseconds(10));
      return;
    }
    try {
      all_reduce(comm, data).wait();
    } catch (...) {
      ++failed;
      throw;
    }
    ++failed;
  });
  for (const int rank : {0, 2}) {
    const auto fault = fault_of(thrown[static_cast<std::size_t>(rank)]);
    ASSERT_TRUE(fault.has_value()) << "rank " << rank;
    EXPECT_EQ(fault->kind(), FaultKind::kTimeout) << fault->what();
    EXPECT_EQ(fault->rank(), 1) << fault->what();
  }
}

TEST_P(Failure, a_recv_without_a_send_times_out_and_names_the_sender) {
  std::atomic<bool> done{false};
  const auto thrown = run(2, kHours, [&](Communicator& comm) {
    if (comm.rank() == 1) {
      while (!done) std::this_thread::sleep_for(milliseconds(10));
      return;
    }
    float value = 0;
    Work work = comm.recv({&value, 1, DType::kF32}, 1, {.timeout = milliseconds(300)});
    while (!work.done()) std::this_thread::sleep_for(milliseconds(10));
    done = true;
    work.wait();
  });
  const auto fault = fault_of(thrown[0]);
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->kind(), FaultKind::kTimeout) << fault->what();
  EXPECT_EQ(fault->rank(), 1) << fault->what();
}

TEST_P(Failure, operations_after_a_failure_fail_at_once_with_the_same_cause) {
  const auto thrown = run(2, kHours, [&](Communicator& comm) {
    if (comm.rank() == 1) return;
    std::vector<float> data(10, 1.0f);
    std::string first;
    try {
      all_reduce(comm, data).wait();
    } catch (const Fault& fault) {
      first = fault.what();
    }
    EXPECT_NE(first, "");
    for (int i = 0; i < 3; ++i) {
      try {
        comm.barrier().wait();
        ADD_FAILURE() << "an operation of a poisoned group went through";
      } catch (const Fault& fault) {
        EXPECT_EQ(fault.what(), first);
        EXPECT_EQ(fault.rank(), 1);
      }
    }
    EXPECT_EQ(comm.flight_record().back().state, FlightEntry::State::kFailed);
  });
  EXPECT_FALSE(fault_of(thrown[0]).has_value());
}

TEST_P(Failure, a_message_that_was_refused_does_not_hold_up_the_end) {
  run(2, kHours, [&](Communicator& comm) {
    std::vector<float> data(10, 1.0f);
    all_reduce(comm, data).wait();
    comm.abort("on purpose");
    EXPECT_THROW(comm.send({data.data(), 10, DType::kF32}, 1 - comm.rank()).wait(), Fault);  // its lane has no thread
  });
}

TEST_P(Failure, abort_wakes_this_rank_and_the_others) {
  const auto thrown = run(3, kHours, [&](Communicator& comm) {
    std::vector<float> data(10, 1.0f);
    if (comm.rank() != 1) return all_reduce(comm, data).wait();
    float value = 0;
    Work work = comm.recv({&value, 1, DType::kF32}, 0);
    std::this_thread::sleep_for(milliseconds(100));
    EXPECT_FALSE(work.done());
    comm.abort("stop was asked for");
    work.wait();
  });
  const auto own = fault_of(thrown[1]);
  ASSERT_TRUE(own.has_value());
  EXPECT_EQ(own->kind(), FaultKind::kAborted);
  EXPECT_NE(std::string(own->what()).find("stop was asked for"), std::string::npos) << own->what();
  for (const std::size_t rank : {0u, 2u}) {
    const auto fault = fault_of(thrown[rank]);
    ASSERT_TRUE(fault.has_value());
    EXPECT_EQ(fault->kind(), FaultKind::kPeerLost) << fault->what();
    EXPECT_EQ(fault->rank(), 1) << fault->what();
  }
}

TEST_P(Failure, a_communicator_can_be_dropped_with_work_in_flight) {
  Work orphan;
  run(2, kHours, [&](Communicator& comm) {
    static thread_local std::vector<float> data(1000, 1.0f);
    comm.barrier().wait();
    if (comm.rank() == 0) {
      orphan = all_reduce(comm, data);
      comm = Communicator();
      EXPECT_TRUE(orphan.done());
    } else {
      std::this_thread::sleep_for(milliseconds(300));
    }
  });
  try {
    orphan.wait();
    FAIL() << "went through";
  } catch (const Fault& fault) {
    EXPECT_EQ(fault.kind(), FaultKind::kAborted) << fault.what();
  }
}

TEST_P(Failure, waiting_a_little_does_not_fail_the_operation) {
  const auto thrown = run(2, kHours, [&](Communicator& comm) {
    std::vector<float> data(10, 1.0f);
    if (comm.rank() == 1) std::this_thread::sleep_for(milliseconds(200));
    Work work = all_reduce(comm, data);
    while (!work.wait_for(milliseconds(20))) {
    }
    EXPECT_EQ(data[0], 2.0f);
    comm.barrier().wait();
  });
  for (const auto& one : thrown) EXPECT_FALSE(fault_of(one).has_value());
}

TEST_P(Failure, a_failed_subgroup_leaves_its_parent_alive) {
  const auto thrown = run(3, kHours, [&](Communicator& comm) {
    if (comm.rank() < 2) {
      Communicator pair = comm.subgroup({1, 0}, "pair");
      if (comm.rank() == 0) {
        pair.abort("test");
      } else {
        try {
          pair.barrier().wait();
          ADD_FAILURE() << "went through";
        } catch (const Fault& fault) {
          EXPECT_EQ(fault.rank(), 0) << fault.what();  // the global rank, which is member 1 of the pair
        }
      }
    }
    std::vector<float> data(10, 1.0f);
    all_reduce(comm, data).wait();
    EXPECT_EQ(data[0], 3.0f);
    comm.barrier().wait();
  });
  for (const auto& one : thrown) {
    const auto fault = fault_of(one);
    EXPECT_FALSE(fault.has_value()) << fault->what();
  }
}

std::vector<std::string> backends() {
#ifdef LOCKSTEP_TEST_GLOO
  return {"local", "tcp", "tcp_apart", "gloo", "gloo_apart"};
#else
  return {"local", "tcp", "tcp_apart"};
#endif
}
INSTANTIATE_TEST_SUITE_P(Backends, Failure, ::testing::ValuesIn(backends()),
                         [](const auto& each) { return each.param; });

TEST(LocalFailure, ranks_that_disagree_on_the_operation_are_told_so) {
  const auto thrown = run_ranks({"local", 2}, [&](Communicator& comm) {
    float value = 0;
    if (comm.rank() == 0) {
      comm.all_reduce({&value, 1, DType::kF32}).wait();
    } else {
      comm.barrier().wait();
    }
  });
  for (const auto& one : thrown) {
    const auto fault = fault_of(one);
    ASSERT_TRUE(fault.has_value());
    EXPECT_NE(std::string(fault->what()).find("called barrier"), std::string::npos) << fault->what();
  }
}

}  // namespace
}  // namespace lockstep::comm::testing
