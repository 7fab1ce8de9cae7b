#include "lockstep/elastic/workers.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/stacks.h"

namespace lockstep::elastic {
namespace {

constexpr double kStackSeconds = 0.3;  // for threads to write their stacks

}  // namespace

Workers::Workers(WorkerOptions options, Heard heard, Ended ended)
    : options_(std::move(options)), heard_(std::move(heard)), ended_(std::move(ended)) {}

int Workers::start(int number) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw environment_error(fmt::format("cannot make a socket: {}", std::strerror(errno)), "raise `ulimit -n`");
  }
  UniqueFd mine(ends[0]);
  const UniqueFd theirs(ends[1]);
  SpawnOptions spawn;
  spawn.argv = options_.argv;
  spawn.environment = options_.environment;
  if (!options_.commanded) {
    spawn.environment["LOCKSTEP_RANK"] = spawn.environment["LOCKSTEP_LOCAL_RANK"] = std::to_string(number);
  }
  spawn.environment["LOCKSTEP_MESSAGE_FD"] = std::to_string(theirs.get());
  spawn.inherited_fds = {theirs.get()};
  spawn.standard_output = spawn.standard_error = StreamMode::kPipe;
  auto worker = std::make_unique<Worker>(Process::spawn(spawn));
  worker->messages = std::move(mine);
  const int pid = worker->process.pid();
  worker->end = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  workers_[number] = std::move(worker);
  return pid;
}

void Workers::name(int number, int rank) {
  const auto found = workers_.find(number);
  if (found == workers_.end()) return;
  found->second->log = std::ofstream(options_.log_folder / fmt::format("rank-{:05d}.log", rank), std::ios::app);
}

void Workers::tell(int number, const nlohmann::json& message) {
  if (!is_left(number)) return;
  const Worker& worker = *workers_.at(number);
  if (!worker.messages) return;
  const std::string line = message.dump() + "\n";
  (void)!::send(worker.messages.get(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Workers::write_stacks(int number) {
  if (!is_left(number)) return;
  Worker& worker = *workers_.at(number);
  write_log(number, worker, thread_states(worker.process.pid()));
  ask_for_stacks(worker.process.pid());
  const Deadline deadline = Deadline::after(kStackSeconds);
  while (worker.process.stderr_fd() && !deadline.expired()) {
    pollfd polled{worker.process.stderr_fd().get(), POLLIN, 0};
    if (poll(&polled, 1, deadline.remaining_milliseconds()) > 0) read_from(number, worker, worker.process.stderr_fd());
  }
}

void Workers::kill(int number) {
  if (is_left(number)) workers_.at(number)->process.signal_group(SIGKILL);
}

void Workers::signal(int worker, int number) {
  if (is_left(worker)) workers_.at(worker)->process.signal(number);
}

void Workers::signal_all(int number) {
  for (const auto& [ignored, worker] : workers_) {
    if (!worker->over) worker->process.signal(number);
  }
}

void Workers::end_all(double grace_seconds) {
  for (const auto& [number, worker] : workers_) {
    if (worker->over) continue;
    worker->process.signal_group(SIGCONT);  // a stopped process cannot end by itself
    worker->process.signal_group(SIGTERM);
  }
  const Deadline deadline = Deadline::after(grace_seconds);
  for (const auto& [number, worker] : workers_) {
    if (worker->over) continue;
    worker->process.terminate(deadline.remaining());
    worker->over = true;
  }
}

void Workers::watch(Poller& poller) {
  for (const auto& [number, worker] : workers_) {
    if (worker->end && !worker->over) poller.watch(worker->end.get(), POLLIN, [] {});  // reap() follows
    for (UniqueFd* fd : {&worker->messages, &worker->process.stdout_fd(), &worker->process.stderr_fd()}) {
      if (!*fd) continue;
      poller.watch(fd->get(), POLLIN,
                   [this, fd, worker_number = number, owner = worker.get()] { read_from(worker_number, *owner, *fd); });
    }
  }
}

void Workers::read_from(int number, Worker& worker, UniqueFd& fd) {
  char buffer[65536];
  const ssize_t got = read(fd.get(), buffer, sizeof(buffer));
  if (got <= 0) return fd.reset();
  const std::string_view bytes(buffer, static_cast<std::size_t>(got));
  if (&fd == &worker.messages) return take_messages(number, worker, bytes);
  write_log(number, worker, bytes);
}

// What a process that has ended still left in its pipes.
void Workers::drain(int number, Worker& worker) {
  for (UniqueFd* fd : {&worker.messages, &worker.process.stdout_fd(), &worker.process.stderr_fd()}) {
    while (*fd) {
      pollfd polled{fd->get(), POLLIN, 0};
      if (poll(&polled, 1, 0) <= 0) break;
      read_from(number, worker, *fd);
    }
  }
}

void Workers::take_messages(int number, Worker& worker, std::string_view bytes) {
  worker.partial.append(bytes);
  for (std::size_t end; (end = worker.partial.find('\n')) != std::string::npos; worker.partial.erase(0, end + 1)) {
    const nlohmann::json message = nlohmann::json::parse(worker.partial.substr(0, end), nullptr, false);
    if (message.is_object()) heard_(number, message);
  }
}

void Workers::write_log(int number, Worker& worker, std::string_view text) {
  if (!worker.log.is_open()) {  // it has no rank yet
    worker.log.open(options_.log_folder / fmt::format("standby-{:05d}.log", number), std::ios::app);
  }
  worker.log.write(text.data(), static_cast<std::streamsize>(text.size())).flush();
}

void Workers::reap() {
  std::vector<std::pair<int, ExitStatus>> ended;
  for (const auto& [number, worker] : workers_) {
    if (worker->over) continue;
    const std::optional<ExitStatus> status = worker->process.poll();
    if (!status) continue;
    worker->over = true;
    drain(number, *worker);
    ended.emplace_back(number, *status);
  }
  for (const auto& [number, status] : ended) ended_(number, status);
}

bool Workers::is_left(int worker) const {
  const auto found = workers_.find(worker);
  return found != workers_.end() && !found->second->over;
}

std::vector<int> Workers::left() const {
  std::vector<int> numbers;
  for (const auto& [number, worker] : workers_) {
    if (!worker->over) numbers.push_back(number);
  }
  return numbers;
}

bool Workers::any_left() const { return !left().empty(); }

}  // namespace lockstep::elastic
