// The mpi backend under mpirun: the suite at several sizes, and ranks that die or stall.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "lockstep/base/process.h"

namespace lockstep {
namespace {

SpawnOptions mpirun(const std::string& scenario, int ranks, int timeout_ms) {
  SpawnOptions options;
  options.argv = {LOCKSTEP_MPIRUN,
                  "--allow-run-as-root",
                  "--oversubscribe",
                  "--mca",
                  "btl",
                  "self,vader",
                  "-np",
                  std::to_string(ranks),
                  LOCKSTEP_BUILD_DIR "/tests/comm_rank",
                  scenario,
                  "mpi"};
  options.environment["COMM_TEST_TIMEOUT_MS"] = std::to_string(timeout_ms);
  return options;
}

class MpiSuite : public ::testing::TestWithParam<int> {};

TEST_P(MpiSuite, passes_the_conformance_suite) {
  const CommandResult result = run_command(mpirun("suite", GetParam(), 60'000), 120);
  EXPECT_FALSE(result.timed_out);
  EXPECT_TRUE(result.status.ok()) << result.status.to_string() << "\n" << result.output << result.error;
}

INSTANTIATE_TEST_SUITE_P(Ranks, MpiSuite, ::testing::Values(1, 2, 3, 4, 8),
                         [](const auto& each) { return std::to_string(each.param); });

// Starts a looping job, waits until all ranks go round, signals the process of one of them and waits for the end.
CommandResult disturb(int ranks, int signal, int timeout_ms, double limit_seconds) {
  SpawnOptions options = mpirun("loop", ranks, timeout_ms);
  options.standard_output = StreamMode::kPipe;
  options.standard_error = StreamMode::kPipe;
  Process job = Process::spawn(options);
  CommandResult result;
  const auto read_some = [](UniqueFd& fd, std::string& text) {
    char chunk[4096];
    const ssize_t count = ::read(fd.get(), chunk, sizeof(chunk));
    if (count > 0) text.append(chunk, static_cast<std::size_t>(count));
    return count > 0;
  };
  const auto ready = [&] {
    int lines = 0;
    for (std::size_t at = 0; (at = result.output.find("READY ", at)) != std::string::npos; ++at) ++lines;
    return lines == ranks && result.output.back() == '\n';
  };
  while (!ready() && read_some(job.stdout_fd(), result.output)) {
  }
  if (!ready()) return result;
  const int victim = std::stoi(result.output.substr(result.output.rfind("READY ") + 6));
  ::kill(victim, signal);
  const auto status = job.wait(limit_seconds);
  result.timed_out = !status.has_value();
  if (status) result.status = *status;
  if (signal == SIGSTOP) ::kill(victim, SIGKILL);
  while (status && read_some(job.stdout_fd(), result.output)) {
  }
  while (status && read_some(job.stderr_fd(), result.error)) {
  }
  return result;
}

TEST(MpiFailure, a_killed_rank_ends_the_job_and_is_named) {
  const CommandResult result = disturb(3, SIGKILL, 60'000, 30);
  ASSERT_FALSE(result.timed_out);
  EXPECT_FALSE(result.status.ok());
  EXPECT_NE(result.error.find("rank"), std::string::npos) << result.error;
  EXPECT_NE(result.error.find("signal 9"), std::string::npos) << result.error;
}

TEST(MpiFailure, a_stopped_rank_is_a_timeout_and_ends_the_job) {
  const CommandResult result = disturb(3, SIGSTOP, 2000, 60);
  ASSERT_FALSE(result.timed_out);
  EXPECT_FALSE(result.status.ok());
  EXPECT_NE(result.output.find("FAULT timeout"), std::string::npos) << result.output << result.error;
}

TEST(MpiFailure, a_rank_that_leaves_early_ends_the_job_and_names_itself) {
  const CommandResult result = run_command(mpirun("part", 3, 60'000), 60);
  EXPECT_FALSE(result.timed_out);
  EXPECT_FALSE(result.status.ok());
  EXPECT_NE(result.error.find("rank 2 exits while other ranks still work"), std::string::npos) << result.error;
}

}  // namespace
}  // namespace lockstep
