// The gloo backend with ranks as processes: the suite, and ranks that die or stall.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "lockstep/base/process.h"
#include "lockstep/elastic/store.h"

namespace lockstep::comm::testing {
namespace {

constexpr double kPatience = 300;  // seconds; the machine may be busy

class GlooProcesses : public ::testing::TestWithParam<const char*> {
 protected:
  void start(const std::string& scenario, int size, int timeout_ms) {
    for (int rank = 0; rank < size; ++rank) {
      SpawnOptions options;
      options.argv = {
          LOCKSTEP_BUILD_DIR "/tests/comm_rank", scenario, "gloo", std::to_string(rank), std::to_string(size),
          std::to_string(server_.port())};
      options.environment["COMM_TEST_TIMEOUT_MS"] = std::to_string(timeout_ms);
      options.environment["COMM_TEST_SHARED_MEMORY"] = GetParam();
      options.standard_output = StreamMode::kPipe;
      ranks_.push_back(Process::spawn(options));
    }
    texts_.resize(ranks_.size());
  }

  // Reads a rank's output until `word` appears in it, the output ends or the time is over.
  bool read_until(std::size_t rank, const std::string& word, double seconds) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (texts_[rank].find(word) == std::string::npos || texts_[rank].back() != '\n') {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      pollfd entry{ranks_[rank].stdout_fd().get(), POLLIN, 0};
      if (::poll(&entry, 1, 100) <= 0) continue;
      char chunk[4096];
      const ssize_t count = ::read(entry.fd, chunk, sizeof(chunk));
      if (count <= 0) break;
      texts_[rank].append(chunk, static_cast<std::size_t>(count));
    }
    return texts_[rank].find(word) != std::string::npos;
  }

  // Signals `victim` while all ranks are busy; the others must name it.
  void expect_named(std::size_t victim, int signal, const std::string& kind) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      ASSERT_TRUE(read_until(rank, "READY", kPatience)) << texts_[rank];
    }
    ranks_[victim].signal(signal);
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (rank == victim) continue;
      ASSERT_TRUE(read_until(rank, "FAULT", kPatience)) << "rank " << rank << ": " << texts_[rank];
      const std::string expected = "FAULT " + kind + " " + std::to_string(victim) + " ";
      EXPECT_NE(texts_[rank].find(expected), std::string::npos) << "rank " << rank << ": " << texts_[rank];
      EXPECT_NE(texts_[rank].find(": rank " + std::to_string(victim)), std::string::npos) << texts_[rank];
      const auto status = ranks_[rank].wait(kPatience);
      ASSERT_TRUE(status.has_value()) << "rank " << rank << " does not end";
      EXPECT_EQ(status->code, 1);
    }
  }

  elastic::StoreServer server_;
  std::vector<Process> ranks_;
  std::vector<std::string> texts_;
};

TEST_P(GlooProcesses, pass_the_conformance_suite) {
  start("suite", 4, 60'000);
  for (auto& rank : ranks_) {
    const auto status = rank.wait(kPatience);
    ASSERT_TRUE(status.has_value());
    EXPECT_TRUE(status->ok()) << status->to_string();
  }
}

TEST_P(GlooProcesses, name_a_rank_that_was_killed_before_the_time_is_over) {
  start("loop", 4, 600'000);
  expect_named(2, SIGKILL, "peer_lost");
}

TEST_P(GlooProcesses, name_a_rank_that_was_stopped_when_the_time_is_over) {
  start("loop", 3, 3000);
  expect_named(1, SIGSTOP, "timeout");
}

TEST_P(GlooProcesses, name_a_rank_that_just_left) {
  start("part", 3, 60'000);
  for (const std::size_t rank : {0u, 1u}) {
    ASSERT_TRUE(read_until(rank, "FAULT", kPatience)) << texts_[rank];
    EXPECT_NE(texts_[rank].find("FAULT peer_lost 2 "), std::string::npos) << texts_[rank];
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, GlooProcesses, ::testing::Values("1", "0"),
                         [](const auto& each) { return std::string(each.param) == "1" ? "shared_memory" : "tcp"; });

}  // namespace
}  // namespace lockstep::comm::testing
