#include "lockstep/base/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

extern char** environ;

namespace lockstep {
namespace {

struct Pipe {
  UniqueFd read, write;
};

Pipe make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) {
    throw environment_error(fmt::format("pipe2: {}", std::strerror(errno)),
                            "raise the limit of open files (ulimit -n)");
  }
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

std::vector<std::string> child_environment(const SpawnOptions& options) {
  std::vector<std::string> entries;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string name(text.substr(0, text.find('=')));
    const bool dropped = std::find(options.unset.begin(), options.unset.end(), name) != options.unset.end();
    if (!dropped && options.environment.count(name) == 0) entries.emplace_back(text);
  }
  for (const auto& [name, value] : options.environment) entries.push_back(name + "=" + value);
  return entries;
}

// PATH is searched here, in the parent: execvp is not async-signal-safe.
std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* path = std::getenv("PATH");
  for (const std::string& folder : split(path != nullptr ? path : "/usr/bin:/bin", ':')) {
    const std::string candidate = (folder.empty() ? std::string(".") : folder) + "/" + name;
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  throw environment_error("program `" + printable(name) + "` was not found in PATH",
                          "install it or give its full path");
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> list;
  for (std::string& text : strings) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

// Everything the child needs, prepared before fork: between fork and exec of a threaded parent only
// async-signal-safe calls are allowed, so no allocation happens there.
struct ChildPlan {
  const char* program;
  char** argv;
  char** environment;
  const char* directory;  // nullptr: stay
  int streams[3];         // fd to put on 0, 1, 2; -1: inherit
  const int* keep;
  std::size_t keep_count;
  bool own_group, die_with_parent;
  pid_t parent;
  int report;  // write end: errno of the failed call
};

[[noreturn]] void fail_child(int report) {
  const int error = errno;
  (void)!::write(report, &error, sizeof error);
  ::_exit(127);
}

[[noreturn]] void run_child(const ChildPlan& plan) {
  if (plan.own_group) ::setpgid(0, 0);
  if (plan.die_with_parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != plan.parent) ::_exit(127);  // the parent ended before prctl
  }
  // Handlers vanish with exec but ignored signals and the mask would be inherited.
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int target = 0; target < 3; ++target) {
    if (plan.streams[target] >= 0 && ::dup2(plan.streams[target], target) < 0) fail_child(plan.report);
  }
  for (std::size_t i = 0; i < plan.keep_count; ++i) {
    const int flags = ::fcntl(plan.keep[i], F_GETFD);
    if (flags < 0 || ::fcntl(plan.keep[i], F_SETFD, flags & ~FD_CLOEXEC) != 0) fail_child(plan.report);
  }
  if (plan.directory != nullptr && ::chdir(plan.directory) != 0) fail_child(plan.report);
  ::execve(plan.program, plan.argv, plan.environment);
  fail_child(plan.report);
}

// Descriptors for the child must not be 0, 1 or 2, or dup2 of one stream would overwrite another's source.
UniqueFd above_streams(UniqueFd fd) {
  if (fd.get() > 2) return fd;
  UniqueFd moved(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 3));
  if (!moved) throw environment_error(fmt::format("fcntl(F_DUPFD): {}", std::strerror(errno)), "raise ulimit -n");
  return moved;
}

// The child's end; `parent_end` receives the other one for pipes.
UniqueFd open_stream(StreamMode mode, bool child_reads, UniqueFd& parent_end) {
  if (mode == StreamMode::kInherit) return UniqueFd();
  if (mode == StreamMode::kNull) return above_streams(UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC)));
  Pipe pipe = make_pipe();
  parent_end = std::move(child_reads ? pipe.write : pipe.read);
  return above_streams(std::move(child_reads ? pipe.read : pipe.write));
}

ExitStatus status_of(const siginfo_t& info) {
  ExitStatus status;
  (info.si_code == CLD_EXITED ? status.code : status.signal) = info.si_status;
  return status;
}

}  // namespace

std::string ExitStatus::to_string() const {
  if (signal != 0) return fmt::format("signal {} ({})", signal, ::strsignal(signal));
  return fmt::format("exit code {}", code);
}

Process Process::spawn(const SpawnOptions& options) {
  if (options.argv.empty() || options.argv[0].empty())
    throw bad_input("an empty command cannot be run", "name a program");
  Process process;
  const UniqueFd in = open_stream(options.standard_input, true, process.stdin_);
  const UniqueFd out = open_stream(options.standard_output, false, process.stdout_);
  const UniqueFd error = open_stream(options.standard_error, false, process.stderr_);
  Pipe report = make_pipe();
  report.write = above_streams(std::move(report.write));

  const std::string program = find_program(options.argv[0]);
  std::vector<std::string> arguments = options.argv, environment = child_environment(options);
  std::vector<char*> argv = pointers(arguments), envp = pointers(environment);
  const ChildPlan plan{program.c_str(),
                       argv.data(),
                       envp.data(),
                       options.directory.empty() ? nullptr : options.directory.c_str(),
                       {in.get(), out.get(), error.get()},
                       options.inherited_fds.data(),
                       options.inherited_fds.size(),
                       options.own_group,
                       options.die_with_parent,
                       ::getpid(),
                       report.write.get()};
  const pid_t pid = ::fork();
  if (pid == 0) run_child(plan);
  if (pid < 0) {
    throw environment_error(fmt::format("fork: {}", std::strerror(errno)), "raise the process limit (ulimit -u)");
  }
  if (options.own_group) ::setpgid(pid, pid);  // also here: the caller may signal the group before the child runs
  process.pid_ = pid;
  process.own_group_ = options.own_group;

  report.write.reset();
  int child_error = 0;
  ssize_t got;
  do {
    got = ::read(report.read.get(), &child_error, sizeof child_error);
  } while (got < 0 && errno == EINTR);
  if (got == sizeof child_error) {
    throw environment_error(fmt::format("cannot run `{}`: {}", printable(program, 200), std::strerror(child_error)),
                            "check the program and its folder");
  }
  return process;
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      own_group_(other.own_group_),
      stdin_(std::move(other.stdin_)),
      stdout_(std::move(other.stdout_)),
      stderr_(std::move(other.stderr_)) {}

Process& Process::operator=(Process&& other) noexcept {
  if (this == &other) return *this;
  end();
  pid_ = std::exchange(other.pid_, -1);
  own_group_ = other.own_group_;
  stdin_ = std::move(other.stdin_);
  stdout_ = std::move(other.stdout_);
  stderr_ = std::move(other.stderr_);
  return *this;
}

Process::~Process() { end(); }

void Process::end() noexcept {
  if (pid_ <= 0) return;
  own_group_ ? signal_group(SIGKILL) : signal(SIGKILL);
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED) != 0 && errno == EINTR) {
  }
  pid_ = -1;
}

std::optional<ExitStatus> Process::poll() const {
  siginfo_t info{};
  // WNOWAIT: the child stays a zombie, see the header.
  int result;
  do {
    result = ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
  } while (result != 0 && errno == EINTR);
  if (result != 0) throw InternalError(fmt::format("waitid({}): {}", pid_, std::strerror(errno)));
  if (info.si_pid == 0) return std::nullopt;
  return status_of(info);
}

std::optional<ExitStatus> Process::wait(double timeout_seconds) const {
  const Deadline deadline = Deadline::after(timeout_seconds);
  // A pidfd becomes readable when the child ends; kernels before 5.3 fall back to looking every 10 ms.
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  while (true) {
    if (const auto status = poll()) return status;
    if (deadline.expired()) return std::nullopt;
    pollfd entry{pidfd.get(), POLLIN, 0};
    ::poll(&entry, pidfd ? 1 : 0, deadline.remaining_milliseconds(pidfd ? 1000 : 10));
  }
}

void Process::signal(int number) const {
  if (pid_ > 0) ::kill(pid_, number);
}

void Process::signal_group(int number) const {
  if (pid_ <= 0) return;
  if (own_group_) {
    ::kill(-pid_, number);
  } else {
    ::kill(pid_, number);
  }
}

ExitStatus Process::terminate(double grace_seconds) {
  signal_group(SIGTERM);
  auto status = wait(grace_seconds);
  signal_group(SIGKILL);
  // SIGKILL cannot be refused; a child stuck in the kernel (dead NFS) is given up on rather than waited for forever.
  if (!status) status = wait(30.0);
  if (!status) throw Fault(FaultKind::kTimeout, -1, fmt::format("process {} does not end even after SIGKILL", pid_));
  return *status;
}

namespace {

// Reads what is there; false at end of file.
bool drain(const UniqueFd& fd, std::string& into, std::size_t cap) {
  char buffer[65536];
  const ssize_t got = ::read(fd.get(), buffer, sizeof buffer);
  if (got > 0) into.append(buffer, std::min(static_cast<std::size_t>(got), cap - std::min(cap, into.size())));
  return got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN));
}

}  // namespace

CommandResult run_command(SpawnOptions options, double timeout_seconds, std::size_t output_cap) {
  options.standard_output = options.standard_error = StreamMode::kPipe;
  const Deadline deadline = Deadline::after(timeout_seconds);
  Process process = Process::spawn(options);
  CommandResult result;
  UniqueFd& out = process.stdout_fd();
  UniqueFd& error = process.stderr_fd();
  while ((out || error) && !deadline.expired()) {
    pollfd entries[2] = {{out.get(), POLLIN, 0}, {error.get(), POLLIN, 0}};  // poll skips negative descriptors
    if (::poll(entries, 2, deadline.remaining_milliseconds()) < 0 && errno != EINTR) break;
    if (entries[0].revents != 0 && !drain(out, result.output, output_cap)) out.reset();
    if (entries[1].revents != 0 && !drain(error, result.error, output_cap)) error.reset();
    // A grandchild may keep the pipes open after the command itself is done.
    if (entries[0].revents == 0 && entries[1].revents == 0 && process.poll()) break;
  }
  if (const auto status = process.wait(deadline.remaining())) {
    result.status = *status;
  } else {
    result.timed_out = true;
    process.signal_group(SIGKILL);
    result.status = process.terminate(0.0);
  }
  return result;
}

}  // namespace lockstep
