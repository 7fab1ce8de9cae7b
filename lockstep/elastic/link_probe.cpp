#include "lockstep/elastic/link_probe.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/elastic/sockets.h"

namespace lockstep::elastic {
namespace {

constexpr int kRounds = 100;
constexpr std::size_t kTokenBytes = 64;
constexpr std::size_t kPieceBytes = 1u << 20;
constexpr std::uint64_t kBurstBytes = 64u << 20;
constexpr double kBurstSeconds = 2.0;     // a slow link is not kept busy for longer
constexpr double kStrangerSeconds = 5.0;  // for who connects to show the token
constexpr double kSessionSeconds = 60.0;
constexpr int kLookMilliseconds = 200;

// Whole reads and writes on a non-blocking socket, until the deadline.
class Stream {
 public:
  Stream(UniqueFd fd, std::string name, double seconds)
      : fd_(std::move(fd)), name_(std::move(name)), deadline_(Deadline::after(seconds)) {
    const int on = 1;
    ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }

  void write(const void* data, std::size_t bytes) {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
      wait(POLLOUT);
      const ssize_t done = ::send(fd_.get(), from, bytes, MSG_NOSIGNAL);
      if (done < 0 && errno != EAGAIN && errno != EINTR) lose();
      if (done > 0) from += done, bytes -= static_cast<std::size_t>(done);
    }
  }

  void read(void* data, std::size_t bytes) {
    char* into = static_cast<char*>(data);
    while (bytes > 0) {
      wait(POLLIN);
      const ssize_t done = ::recv(fd_.get(), into, bytes, 0);
      if (done == 0 || (done < 0 && errno != EAGAIN && errno != EINTR)) lose();
      if (done > 0) into += done, bytes -= static_cast<std::size_t>(done);
    }
  }

  void extend(double seconds) { deadline_ = Deadline::after(seconds); }

 private:
  void wait(short what) {
    pollfd polled{fd_.get(), what, 0};
    if (::poll(&polled, 1, deadline_.remaining_milliseconds()) == 0) {
      throw Fault(FaultKind::kTimeout, -1, name_ + " did not answer in time");
    }
  }
  [[noreturn]] void lose() { throw Fault(FaultKind::kPeerLost, -1, name_ + " closed the connection"); }

  UniqueFd fd_;
  const std::string name_;
  Deadline deadline_;
};

std::string padded(std::string token) {
  token.resize(kTokenBytes, '\0');
  return token;
}

// Rounds of eight bytes, answered by the time here; then bytes until the prober has sent enough.
void serve(UniqueFd fd, const std::string& token) {
  Stream stream(std::move(fd), "the prober", kStrangerSeconds);
  std::string shown(kTokenBytes, '\0');
  stream.read(shown.data(), shown.size());
  if (!equal_tokens(shown, padded(token))) return;
  stream.extend(kSessionSeconds);
  double time = 0;
  for (int round = 0; round < kRounds; ++round) {
    stream.read(&time, sizeof(time));
    time = unix_seconds();
    stream.write(&time, sizeof(time));
  }
  std::vector<char> piece(kPieceBytes);
  for (std::uint8_t more = 1; more != 0;) {
    stream.read(piece.data(), piece.size());
    stream.read(&more, sizeof(more));
  }
  stream.write(&time, sizeof(time));
}

}  // namespace

class LinkEcho::Impl {
 public:
  Impl(const std::string& address, const std::string& token)
      : token_(token), listener_(listen_on({"the link probe", address, 0, token})), port_(port_of(listener_.get())) {
    thread_ = std::thread([this] { run(); });
  }
  ~Impl() {
    over_ = true;
    thread_.join();
  }
  int port() const { return port_; }

 private:
  // One prober after the other, so that they do not disturb each other.
  void run() {
    while (!over_) {
      pollfd polled{listener_.get(), POLLIN, 0};
      if (::poll(&polled, 1, kLookMilliseconds) <= 0) continue;
      UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!fd) continue;
      try {
        serve(std::move(fd), token_);
      } catch (const Fault&) {
        // It left, or was a stranger.
      }
    }
  }

  const std::string token_;
  UniqueFd listener_;
  const int port_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

LinkEcho::LinkEcho(const std::string& address, const std::string& token)
    : impl_(std::make_unique<Impl>(address, token)) {}
LinkEcho::~LinkEcho() = default;
int LinkEcho::port() const { return impl_->port(); }

LinkFigures probe_link(const std::string& host, int port, const std::string& token, double timeout_seconds) {
  const std::string name = fmt::format("{}:{}", host, port);
  UniqueFd fd = begin_to_connect(host, port);
  if (!fd) throw Fault(FaultKind::kPeerLost, -1, name + " cannot be reached");
  Stream stream(std::move(fd), name, timeout_seconds);
  const std::string shown = padded(token);
  stream.write(shown.data(), shown.size());
  std::vector<double> rounds, offsets;
  for (int round = 0; round < kRounds; ++round) {
    double time = 0;
    const double sent = monotonic_seconds(), sent_at = unix_seconds();
    stream.write(&time, sizeof(time));
    stream.read(&time, sizeof(time));
    const double took = monotonic_seconds() - sent;
    rounds.push_back(took);
    offsets.push_back(time - (sent_at + took / 2));
  }
  LinkFigures figures;
  std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
  std::nth_element(offsets.begin(), offsets.begin() + kRounds / 2, offsets.end());
  figures.latency_seconds = rounds[kRounds / 2] / 2;
  figures.clock_offset_seconds = offsets[kRounds / 2];
  const std::vector<char> piece(kPieceBytes);
  const double began = monotonic_seconds();
  std::uint64_t sent = 0;
  for (std::uint8_t more = 1; more != 0;) {
    stream.write(piece.data(), piece.size());
    sent += piece.size();
    more = sent < kBurstBytes && monotonic_seconds() - began < kBurstSeconds ? 1 : 0;
    stream.write(&more, sizeof(more));
  }
  double answer = 0;
  stream.read(&answer, sizeof(answer));
  figures.bytes_per_second = static_cast<double>(sent) / (monotonic_seconds() - began);
  return figures;
}

}  // namespace lockstep::elastic
