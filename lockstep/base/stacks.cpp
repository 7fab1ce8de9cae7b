#include "lockstep/base/stacks.h"

#include <execinfo.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

namespace lockstep {
namespace {

constexpr int kSignal = SIGURG;  // ignored by processes that do not know it
constexpr int kMostFrames = 64;

// Only what may be called in a signal handler; backtrace() was called before, so it loads nothing here.
void write_stack(int) {
  const int saved = errno;
  std::array<void*, kMostFrames> frames{};
  std::array<char, 64> line{};
  std::size_t length = 0;
  const auto append = [&](const char* text) {
    while (*text != '\0' && length < line.size()) line[length++] = *text++;
  };
  append("stack of thread ");
  std::array<char, 16> digits{};
  std::size_t count = 0;
  for (long tid = syscall(SYS_gettid); tid > 0 && count < digits.size(); tid /= 10) {
    digits[count++] = static_cast<char>('0' + tid % 10);
  }
  while (count > 0 && length < line.size()) line[length++] = digits[--count];
  append(":\n");
  (void)!write(STDERR_FILENO, line.data(), length);
  backtrace_symbols_fd(frames.data(), backtrace(frames.data(), kMostFrames), STDERR_FILENO);
  errno = saved;
}

std::string first_line(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

std::vector<pid_t> threads_of(pid_t process) {
  std::vector<pid_t> threads;
  std::error_code error;
  const std::filesystem::directory_iterator tasks(fmt::format("/proc/{}/task", process), error);
  if (error) return threads;
  for (const auto& entry : tasks) threads.push_back(static_cast<pid_t>(std::atoi(entry.path().filename().c_str())));
  return threads;
}

}  // namespace

void write_stacks_when_asked() {
  void* frame = nullptr;
  backtrace(&frame, 1);  // loads what it needs
  struct sigaction action {};
  action.sa_handler = write_stack;
  action.sa_flags = SA_RESTART;
  sigaction(kSignal, &action, nullptr);
}

std::string thread_states(pid_t process) {
  std::string text;
  for (const pid_t thread : threads_of(process)) {
    const std::filesystem::path folder = fmt::format("/proc/{}/task/{}", process, thread);
    const std::string stat = first_line(folder / "stat");
    const std::size_t name_end = stat.rfind(')');
    if (name_end == std::string::npos || name_end + 2 >= stat.size()) continue;
    const std::string wait = first_line(folder / "wchan");
    text += fmt::format("thread {} {}: state {}{}\n", thread,
                        stat.substr(stat.find('(') + 1, name_end - stat.find('(') - 1), stat[name_end + 2],
                        wait.empty() || wait == "0" ? "" : ", in " + wait);
  }
  return text;
}

void ask_for_stacks(pid_t process) {
  for (const pid_t thread : threads_of(process)) syscall(SYS_tgkill, process, thread, kSignal);
}

}  // namespace lockstep
