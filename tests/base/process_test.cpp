#include "lockstep/base/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "expect_user_error.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

using testing::user_error;

constexpr double kPatience = 600.0;  // the machine may be busy

SpawnOptions shell(const std::string& script) {
  SpawnOptions options;
  options.argv = {"sh", "-c", script};
  return options;
}

bool is_alive(pid_t pid) {
  if (::kill(pid, 0) != 0) return false;
  try {  // a zombie that nobody has reaped yet is not alive
    const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat", 4096);
    return stat.find(") Z") == std::string::npos;
  } catch (const UserError&) {
    return false;
  }
}

bool gone_within(pid_t pid, double seconds) {
  const Deadline deadline = Deadline::after(seconds);
  while (is_alive(pid)) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

TEST(Process, reports_exit_codes_and_signals) {
  EXPECT_EQ(Process::spawn(shell("exit 7")).wait(kPatience)->code, 7);
  const auto killed = Process::spawn(shell("kill -9 $$")).wait(kPatience);
  EXPECT_EQ(killed->signal, SIGKILL);
  EXPECT_EQ(killed->to_string(), "signal 9 (Killed)");
  EXPECT_FALSE(killed->ok());
}

TEST(Process, status_can_be_asked_for_again_and_again) {
  const Process process = Process::spawn(shell("exit 3"));
  EXPECT_EQ(process.wait(kPatience)->code, 3);
  EXPECT_EQ(process.poll()->code, 3);
  EXPECT_EQ(process.wait(0)->code, 3);
}

TEST(Process, wait_gives_up_after_its_timeout) {
  const Process process = Process::spawn(shell("sleep 100000"));
  const Stopwatch watch;
  EXPECT_EQ(process.wait(0.1), std::nullopt);
  EXPECT_GE(watch.seconds(), 0.1);
  EXPECT_EQ(process.poll(), std::nullopt);
}

TEST(Process, arguments_reach_the_child_unchanged) {
  SpawnOptions options;
  options.argv = {"printf", "%s|", "a b", "$HOME", "`id`", "; rm -rf x", "", "\"'"};
  EXPECT_EQ(run_command(options, kPatience).output, "a b|$HOME|`id`|; rm -rf x||\"'|");
}

TEST(Process, environment_is_added_replaced_and_removed) {
  ::setenv("LOCKSTEP_TEST_OLD", "old", 1);
  ::setenv("LOCKSTEP_TEST_GONE", "here", 1);
  SpawnOptions options = shell("echo $LOCKSTEP_TEST_OLD $LOCKSTEP_TEST_NEW ${LOCKSTEP_TEST_GONE-gone}");
  options.environment = {{"LOCKSTEP_TEST_OLD", "replaced"}, {"LOCKSTEP_TEST_NEW", "new"}};
  options.unset = {"LOCKSTEP_TEST_GONE"};
  EXPECT_EQ(run_command(options, kPatience).output, "replaced new gone\n");
}

TEST(Process, pipes_carry_input_output_and_error) {
  SpawnOptions options = shell("cat; echo bad >&2");
  options.standard_input = options.standard_output = StreamMode::kPipe;
  options.standard_error = StreamMode::kNull;
  Process process = Process::spawn(options);
  ASSERT_EQ(::write(process.stdin_fd().get(), "hello", 5), 5);
  process.stdin_fd().reset();
  char buffer[16] = {};
  ASSERT_EQ(::read(process.stdout_fd().get(), buffer, sizeof buffer), 5);
  EXPECT_STREQ(buffer, "hello");
  const CommandResult both = run_command(shell("echo out; echo err >&2; exit 4"), kPatience);
  EXPECT_EQ(both.output, "out\n");
  EXPECT_EQ(both.error, "err\n");
  EXPECT_EQ(both.status.code, 4);
}

TEST(Process, large_output_is_read_to_the_end_and_cut_at_the_cap) {
  const CommandResult result = run_command(shell("yes | head -c 1000000; echo e >&2"), kPatience, 5000);
  EXPECT_EQ(result.output.size(), 5000u);
  EXPECT_EQ(result.error, "e\n");
  EXPECT_TRUE(result.status.ok());
}

TEST(Process, inherited_descriptors_keep_their_number_and_others_are_closed) {
  int fds[2], other[2];
  ASSERT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(other, O_CLOEXEC), 0);
  const UniqueFd read_end(fds[0]), write_end(fds[1]), a(other[0]), b(other[1]);
  SpawnOptions options =
      shell("echo hi >&" + std::to_string(fds[1]) + "; test ! -e /proc/self/fd/" + std::to_string(other[1]));
  options.inherited_fds = {fds[1]};
  EXPECT_EQ(Process::spawn(options).wait(kPatience)->code, 0);
  char buffer[8] = {};
  ASSERT_EQ(::read(fds[0], buffer, sizeof buffer), 3);
  EXPECT_STREQ(buffer, "hi\n");
}

TEST(Process, a_missing_program_or_folder_is_an_environment_error) {
  SpawnOptions options;
  options.argv = {"lockstep-no-such-program"};
  EXPECT_HAS(user_error([&] { Process::spawn(options); }, ExitCode::kEnvironment), "not found in PATH");
  options.argv = {"/no/such/program"};
  EXPECT_HAS(user_error([&] { Process::spawn(options); }, ExitCode::kEnvironment), "No such file");
  options.argv = {"true"};
  options.directory = "/no/such/folder";
  user_error([&] { Process::spawn(options); }, ExitCode::kEnvironment);
  user_error([&] { Process::spawn({}); });
}

TEST(Process, signalling_the_group_reaches_grandchildren) {
  SpawnOptions options = shell("sleep 100000 & echo $!; wait");
  options.standard_output = StreamMode::kPipe;
  Process process = Process::spawn(options);
  char buffer[32] = {};
  ASSERT_GT(::read(process.stdout_fd().get(), buffer, sizeof buffer - 1), 0);
  const pid_t grandchild = std::atoi(buffer);
  ASSERT_TRUE(is_alive(grandchild));
  EXPECT_EQ(process.terminate(kPatience).signal, SIGTERM);
  EXPECT_TRUE(gone_within(grandchild, kPatience));
}

TEST(Process, terminate_kills_what_ignores_the_polite_request) {
  SpawnOptions options = shell("trap '' TERM; echo ready; while :; do sleep 1; done");
  options.standard_output = StreamMode::kPipe;
  Process process = Process::spawn(options);
  char buffer[8];
  ASSERT_GT(::read(process.stdout_fd().get(), buffer, sizeof buffer), 0);
  EXPECT_EQ(process.terminate(0.2).signal, SIGKILL);
}

TEST(Process, nothing_outlives_its_process_object) {
  pid_t child = 0, grandchild = 0;
  {
    SpawnOptions options = shell("sleep 100000 & echo $!; wait");
    options.standard_output = StreamMode::kPipe;
    Process process = Process::spawn(options);
    Process moved = std::move(process);
    char buffer[32] = {};
    ASSERT_GT(::read(moved.stdout_fd().get(), buffer, sizeof buffer - 1), 0);
    child = moved.pid();
    grandchild = std::atoi(buffer);
  }
  EXPECT_FALSE(is_alive(child));
  EXPECT_TRUE(gone_within(grandchild, kPatience));
}

TEST(Process, children_die_with_the_thread_that_spawned_them) {
  std::optional<Process> process;
  std::thread([&] { process = Process::spawn(shell("sleep 100000")); }).join();
  EXPECT_EQ(process->wait(kPatience)->signal, SIGKILL);
  SpawnOptions options = shell("sleep 100000");
  options.die_with_parent = false;
  std::thread([&] { process = Process::spawn(options); }).join();
  EXPECT_EQ(process->wait(0.3), std::nullopt);
}

TEST(Process, run_command_ends_a_command_that_takes_too_long) {
  const CommandResult result = run_command(shell("echo start; sleep 100000"), 3);
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.output, "start\n");
}

TEST(Process, run_command_does_not_wait_for_daemons_that_keep_the_pipe_open) {
  const CommandResult result = run_command(shell("sleep 100000 & echo done"), 36000);
  EXPECT_EQ(result.output, "done\n");
  EXPECT_TRUE(result.status.ok());
}

TEST(Process, signals_blocked_or_ignored_here_work_in_the_child) {
  sigset_t block, old;
  sigemptyset(&block);
  sigaddset(&block, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &block, &old);
  auto* previous = std::signal(SIGINT, SIG_IGN);
  Process process = Process::spawn(shell("sleep 100000"));
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  std::signal(SIGINT, previous);
  process.signal_group(SIGTERM);
  EXPECT_EQ(process.wait(kPatience)->signal, SIGTERM);
}

}  // namespace
}  // namespace lockstep
