#include "lockstep/schedulers/children.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"

namespace lockstep::schedulers {
namespace {

constexpr double kInputSeconds = 30.0;
constexpr std::size_t kMostAtOnce = 1u << 20;
constexpr int kSshFailed = 255;

void write_all(const UniqueFd& fd, std::string_view text, const std::string& program) {
  const Deadline deadline = Deadline::after(kInputSeconds);
  while (!text.empty() && fd) {
    pollfd polled{fd.get(), POLLOUT, 0};
    if (::poll(&polled, 1, deadline.remaining_milliseconds()) <= 0 && deadline.expired()) {
      throw environment_error(fmt::format("`{}` does not read its input", program), "does it ask for a password?");
    }
    const ssize_t wrote = ::write(fd.get(), text.data(), text.size());
    if (wrote < 0 && errno != EINTR && errno != EAGAIN) return;  // it has ended; its status says why
    if (wrote > 0) text.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

// What can be read now; closes the descriptor at its end.
std::string read_now(UniqueFd& fd) {
  std::string text;
  char buffer[65536];
  while (fd && text.size() < kMostAtOnce) {
    pollfd polled{fd.get(), POLLIN, 0};
    if (::poll(&polled, 1, 0) <= 0) break;
    const ssize_t got = ::read(fd.get(), buffer, sizeof(buffer));
    if (got <= 0) {
      fd.reset();
      break;
    }
    text.append(buffer, static_cast<std::size_t>(got));
  }
  return text;
}

class ChildrenLog : public LogSource {
 public:
  explicit ChildrenLog(Children& children) : children_(children) {}
  std::string read() override { return children_.read(); }

 private:
  Children& children_;
};

}  // namespace

void Children::start(const Start& start) {
  SpawnOptions options;
  options.argv = start.argv;
  options.environment = start.environment;
  options.standard_input = StreamMode::kPipe;
  options.standard_output = options.standard_error = StreamMode::kPipe;
  children_.push_back(std::make_unique<Child>(Child{Process::spawn(options), start.prefix, {}}));
  write_all(children_.back()->process.stdin_fd(), start.input, start.argv.front());
}

void Children::tell(const std::string& line) {
  for (const auto& child : children_) {
    if (!child->process.poll()) write_all(child->process.stdin_fd(), line + "\n", "the program");
  }
}

void Children::interrupt() {
  for (const auto& child : children_) child->process.signal(SIGINT);
}

std::string Children::read() {
  std::string all;
  for (const auto& child : children_) {
    UniqueFd* const streams[2] = {&child->process.stdout_fd(), &child->process.stderr_fd()};
    for (int i = 0; i < 2; ++i) {
      std::string& partial = child->partial[i];
      partial += read_now(*streams[i]);
      for (std::size_t end; (end = partial.find('\n')) != std::string::npos; partial.erase(0, end + 1)) {
        all += child->prefix + partial.substr(0, end + 1);
      }
      if (!*streams[i] && !partial.empty()) all += child->prefix + std::exchange(partial, "") + "\n";
    }
  }
  return all;
}

bool Children::any_left() const {
  return std::any_of(children_.begin(), children_.end(), [](const auto& child) { return !child->process.poll(); });
}

std::vector<std::optional<ExitStatus>> Children::ends() const {
  std::vector<std::optional<ExitStatus>> ends;
  ends.reserve(children_.size());
  for (const auto& child : children_) ends.push_back(child->process.poll());
  return ends;
}

std::unique_ptr<LogSource> follow_children(Children& children) { return std::make_unique<ChildrenLog>(children); }

State state_of_ends(const Children& children) {
  State state;
  state.phase = Phase::kRunning;
  if (children.any_left()) return state;
  int code = -1;
  for (const auto& end : children.ends()) {
    const int its = end->signal != 0 ? 1 : end->code;
    const bool was_cut_off = its == static_cast<int>(ExitCode::kRetry) || its == kSshFailed || end->signal != 0;
    if (its == 0) code = 0;
    if (code < 0 && !was_cut_off) code = its;
    state.detail = code >= 0 ? "" : end->to_string();
  }
  if (code < 0) {  // nobody knows how the run ended
    const auto& first = children.ends().front();
    code = first->code == static_cast<int>(ExitCode::kRetry) ? first->code : static_cast<int>(ExitCode::kRunFailed);
  }
  state.exit_code = code;
  state.phase = code == 0                                          ? Phase::kDone
                : code == static_cast<int>(ExitCode::kInterrupted) ? Phase::kCancelled
                                                                   : Phase::kFailed;
  return state;
}

}  // namespace lockstep::schedulers
