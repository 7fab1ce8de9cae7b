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
#include "lockstep/base/file.h"
#include "lockstep/base/stacks.h"

namespace lockstep::elastic {
namespace {

constexpr double kStackSeconds = 0.3;  // for threads to write their stacks
constexpr std::size_t kLastLines = 30;
constexpr std::size_t kMostLineBytes = 500;
constexpr std::uint64_t kMostErrorBytes = std::uint64_t{1} << 20;

}  // namespace

Workers::Workers(WorkerOptions options, Heard heard, Ended ended, Printed printed)
    : options_(std::move(options)), heard_(std::move(heard)), ended_(std::move(ended)), printed_(std::move(printed)) {}

std::unique_ptr<Workers::Worker> Workers::spawn(SpawnOptions spawn) const {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw environment_error(fmt::format("cannot make a socket: {}", std::strerror(errno)), "raise `ulimit -n`");
  }
  UniqueFd mine(ends[0]);
  const UniqueFd theirs(ends[1]);
  spawn.argv = options_.argv;
  spawn.unset = options_.unset;
  for (const auto& [name, value] : options_.environment) spawn.environment.emplace(name, value);
  spawn.environment["LOCKSTEP_MESSAGE_FD"] = std::to_string(theirs.get());
  spawn.environment["LOCKSTEP_AGENT_PID"] = std::to_string(::getpid());
  spawn.inherited_fds = {theirs.get()};
  spawn.standard_output = spawn.standard_error = StreamMode::kPipe;
  auto worker = std::make_unique<Worker>(Process::spawn(spawn));
  worker->messages = std::move(mine);
  worker->end = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, worker->process.pid(), 0)));
  return worker;
}

int Workers::start(int number) {
  SpawnOptions options;
  if (options_.processes == Processes::kFixed) {
    options.environment["LOCKSTEP_RANK"] = options.environment["LOCKSTEP_LOCAL_RANK"] = std::to_string(number);
  }
  workers_[number] = spawn(std::move(options));
  return workers_.at(number)->process.pid();
}

int Workers::start(int number, const Place& place) {
  const std::filesystem::path error_file =
      options_.log_folder / fmt::format("error-{:05d}-generation-{}.json", place.rank, place.generation);
  SpawnOptions options;
  options.environment = place.environment;
  options.environment["TORCHELASTIC_ERROR_FILE"] = error_file.string();
  workers_[number] = spawn(std::move(options));
  Worker& worker = *workers_.at(number);
  worker.place = place;
  worker.error_file = error_file;
  const int pid = worker.process.pid();
  name(number, place.rank);
  write_log(number, worker,
            fmt::format("--- generation {}: rank {}, process {}, {} ---\n", place.generation, place.rank, pid,
                        utc_timestamp(unix_seconds())));
  return pid;
}

nlohmann::json Workers::last_words(int number) const {
  nlohmann::json words = nlohmann::json::object();
  const auto found = workers_.find(number);
  if (found == workers_.end()) return words;
  const Worker& worker = *found->second;
  std::string lines;
  for (const std::string& line : worker.last_lines) lines += line + "\n";
  words["stderr"] = lines;
  std::error_code missing;
  if (!std::filesystem::exists(worker.error_file, missing)) return words;
  try {
    const auto told = nlohmann::json::parse(read_file(worker.error_file, kMostErrorBytes), nullptr, false);
    const nlohmann::json message = told.is_object() ? told.value("message", nlohmann::json()) : nlohmann::json();
    if (message.is_string()) words["message"] = message;
    if (!message.is_object()) return words;
    if (message.value("message", nlohmann::json()).is_string()) words["message"] = message["message"];
    const nlohmann::json extra = message.value("extraInfo", nlohmann::json::object());
    if (extra.is_object() && extra.value("py_callstack", nlohmann::json()).is_string()) {
      words["stack"] = extra["py_callstack"];
    }
  } catch (const UserError&) {
    // Half written, or too large: the last lines have to do.
  }
  return words;
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

std::map<int, std::string> Workers::write_stacks(const std::vector<int>& numbers) {
  std::map<int, std::string> texts;
  for (const int number : numbers) {
    if (!is_left(number)) continue;
    Worker& worker = *workers_.at(number);
    worker.also = &texts[number];
    write_log(number, worker, thread_states(worker.process.pid()));
    ask_for_stacks(worker.process.pid());
  }
  const Deadline deadline = Deadline::after(kStackSeconds);
  while (!texts.empty() && !deadline.expired()) {
    std::vector<pollfd> polled;
    std::vector<int> of;
    for (const auto& [number, text] : texts) {
      if (!workers_.at(number)->process.stderr_fd()) continue;
      polled.push_back({workers_.at(number)->process.stderr_fd().get(), POLLIN, 0});
      of.push_back(number);
    }
    if (polled.empty() || poll(polled.data(), polled.size(), deadline.remaining_milliseconds()) <= 0) break;
    for (std::size_t i = 0; i < polled.size(); ++i) {
      Worker& worker = *workers_.at(of[i]);
      if (polled[i].revents != 0) read_from(of[i], worker, worker.process.stderr_fd());
    }
  }
  for (const auto& [number, text] : texts) workers_.at(number)->also = nullptr;
  return texts;
}

void Workers::kill(int number) {
  if (is_left(number)) workers_.at(number)->process.signal_group(SIGKILL);
}

void Workers::signal(int worker, int number) {
  if (is_left(worker)) workers_.at(worker)->process.signal(number);
}

void Workers::signal_group(int worker, int number) {
  if (is_left(worker)) workers_.at(worker)->process.signal_group(number);
}

void Workers::signal_all(int number) {
  for (const auto& [ignored, worker] : workers_) {
    if (worker->over) continue;
    if (options_.processes == Processes::kForeign) {  // what it runs for us may be a script that runs the program
      worker->process.signal_group(number);
    } else {
      worker->process.signal(number);
    }
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
    if (options_.processes == Processes::kForeign) drain(number, *worker), end_output(*worker);
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
  if (options_.processes != Processes::kForeign) return;
  const bool is_error = &fd == &worker.process.stderr_fd();
  worker.lines[is_error ? 1 : 0].add(bytes, monotonic_seconds(),
                                     [&](const std::string& line) { print(worker, is_error, line); });
}

void Workers::print(Worker& worker, bool is_error, const std::string& line) const {
  if (is_error) {
    worker.last_lines.push_back(line.substr(0, kMostLineBytes));
    if (worker.last_lines.size() > kLastLines) worker.last_lines.pop_front();
  }
  if (printed_) printed_({worker.place.rank, worker.place.local_rank, is_error, line});
}

void Workers::end_output(Worker& worker) const {
  for (const bool is_error : {false, true}) {
    worker.lines[is_error ? 1 : 0].finish([&](const std::string& line) { print(worker, is_error, line); });
  }
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
  if (worker.also != nullptr) worker.also->append(text);
}

void Workers::reap() {
  std::vector<std::pair<int, ExitStatus>> ended;
  for (const auto& [number, worker] : workers_) {
    if (worker->over) continue;
    const std::optional<ExitStatus> status = worker->process.poll();
    if (!status) continue;
    worker->over = true;
    if (options_.processes == Processes::kForeign) worker->process.signal_group(SIGKILL);  // what it left behind
    drain(number, *worker);
    end_output(*worker);
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
