#include "lockstep/elastic/link.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "lockstep/base/clock.h"
#include "lockstep/elastic/sockets.h"

namespace lockstep::elastic {
namespace {

// Agents tell each other short things; who sends more without a line's end, or does not read, is dropped.
constexpr std::size_t kMostBytes = std::size_t{8} << 20;

// The kernel's own limit, for a process that does not come to look: it counts from the first time it sends again.
constexpr int kKernelMilliseconds = 1000;
constexpr double kLongestLook = 0.2;  // between two looks that count in full
constexpr double kTick = 0.01;        // how exactly the kernel knows when answers came

}  // namespace

Link::Link(UniqueFd fd, bool connecting)
    : fd_(std::move(fd)), connecting_(connecting), opened_(monotonic_seconds()), heard_(opened_), checked_(opened_) {
  if (fd_) expect_answers_within(fd_.get(), kKernelMilliseconds);
  if (fd_ && !connecting_) peer_ = peer_host(fd_.get());
}

void Link::require_answers(double now) {
  if (!is_connected()) return;
  const double since = now - std::exchange(checked_, now);
  const double answered = seconds_since_answer(fd_.get());
  unanswered_ = answered <= since + kTick ? 0.0 : unanswered_ + std::min(since, kLongestLook);
  if (unanswered_ < kAnswerSeconds) return;
  silent_ = true;
  close();
}

void Link::send(const nlohmann::json& message) {
  if (!fd_) return;
  out_ += message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (out_.size() > kMostBytes) return close();
  if (!connecting_) write();
}

void Link::watch(Poller& poller) {
  if (!fd_) return;
  const bool writes = connecting_ || !out_.empty();
  poller.watch(fd_.get(), static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), [this] { on_event(); });
}

void Link::on_event() {
  if (!fd_) return;
  if (connecting_) {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    refused_ = error == ECONNREFUSED;
    if (error != 0) return close();
    connecting_ = false;
    heard_ = checked_ = monotonic_seconds();
  }
  write();
  if (fd_) read();
}

void Link::read() {
  char buffer[65536];
  while (fd_) {
    const ssize_t got = recv(fd_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (got <= 0) return fail(got);
    heard_ = monotonic_seconds();
    in_.append(buffer, static_cast<std::size_t>(got));
    std::size_t begin = 0;
    for (std::size_t end; (end = in_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      nlohmann::json message = nlohmann::json::parse(in_.substr(begin, end - begin), nullptr, false);
      if (!message.is_object()) return close();
      messages_.push_back(std::move(message));
    }
    in_.erase(0, begin);
    if (in_.size() > kMostBytes) return close();
  }
}

// The kernel has given up on the other machine, or the other end is closed.
void Link::fail(ssize_t result) {
  silent_ = result < 0 && (errno == ETIMEDOUT || errno == EHOSTUNREACH || errno == ENETUNREACH);
  close();
}

void Link::write() {
  while (fd_ && !out_.empty()) {
    const ssize_t sent = ::send(fd_.get(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (sent <= 0) return fail(sent);
    out_.erase(0, static_cast<std::size_t>(sent));
  }
}

std::vector<nlohmann::json> Link::take(const std::string& until) {
  std::vector<nlohmann::json> taken = std::exchange(messages_, {});
  if (until.empty()) return taken;
  const auto last = std::find_if(taken.begin(), taken.end(),
                                 [&](const nlohmann::json& message) { return message.value("type", "") == until; });
  if (last == taken.end()) return taken;
  messages_.assign(last + 1, taken.end());
  taken.erase(last + 1, taken.end());
  return taken;
}

void Link::flush(double seconds) {
  const Deadline deadline = Deadline::after(seconds);
  while (fd_ && !out_.empty() && !deadline.expired()) {
    Poller poller;
    watch(poller);
    poller.run(deadline.remaining_milliseconds(100));
  }
}

}  // namespace lockstep::elastic
