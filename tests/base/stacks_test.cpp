#include "lockstep/base/stacks.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "lockstep/base/file.h"

namespace lockstep {
namespace {

// Reads until `wanted` was written or the other end is closed.
std::string read_until(int fd, const std::string& wanted) {
  std::string text;
  char buffer[4096];
  while (text.find(wanted) == std::string::npos) {
    const ssize_t got = read(fd, buffer, sizeof(buffer));
    if (got <= 0) break;
    text.append(buffer, static_cast<std::size_t>(got));
  }
  return text;
}

TEST(Stacks, a_process_writes_them_when_asked_and_its_threads_can_be_seen_from_outside) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  UniqueFd in(ends[0]), out(ends[1]);
  const pid_t child = fork();
  if (child == 0) {
    dup2(out.get(), STDERR_FILENO);
    in.reset();
    out.reset();
    write_stacks_when_asked();
    (void)!write(STDERR_FILENO, "ready\n", 6);
    while (true) pause();
  }
  out.reset();
  EXPECT_NE(read_until(in.get(), "ready").find("ready"), std::string::npos);
  EXPECT_NE(thread_states(child).find("state"), std::string::npos);
  ask_for_stacks(child);
  EXPECT_NE(read_until(in.get(), "stack of thread").find("stack of thread"), std::string::npos);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(thread_states(child), "");
}

}  // namespace
}  // namespace lockstep
