#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/elastic/store.h"
#include "lockstep/elastic/store_wire.h"

namespace lockstep::elastic {
namespace {

using Clock = std::chrono::steady_clock;
using wire::Fd;
using wire::Op;
using wire::Status;

// The server answers a wait itself when its time is over; only a server that hangs is caught here.
constexpr milliseconds kReplyGrace{2000};
constexpr std::int64_t kLookMilliseconds = 100;  // between two looks at whether the call is to end

}  // namespace

class StoreClient::Impl {
 public:
  explicit Impl(StoreClientOptions options) : options_(std::move(options)) { give_back(connect()); }

  // Sends one request and returns the fields of the reply after the status byte.
  std::string call(const std::string& frame, milliseconds timeout, const char* what);

 private:
  Fd connect();
  Fd try_connect(Clock::time_point deadline, std::string& problem);
  void greet(int fd, Clock::time_point deadline);
  Fd take();
  void give_back(Fd fd);
  std::string exchange(int fd, const std::string& frame, Clock::time_point deadline);
  void receive_exactly(int fd, char* data, std::size_t count, Clock::time_point deadline);
  // False when the time is over. Throws when the calls of this client are to end.
  bool wait_ready(int fd, short events, Clock::time_point deadline) const;
  void end_when_aborted() const;
  std::string place() const { return fmt::format("rendezvous store {}:{}", options_.address, options_.port); }
  Fault lost(const std::string& why) const { return Fault(FaultKind::kPeerLost, -1, place() + ": " + why); }

  StoreClientOptions options_;
  std::mutex mutex_;
  std::vector<Fd> idle_;
};

void StoreClient::Impl::end_when_aborted() const {
  if (!options_.aborted) return;
  if (const auto reason = options_.aborted()) throw Fault(FaultKind::kAborted, -1, *reason);
}

bool StoreClient::Impl::wait_ready(int fd, short events, Clock::time_point deadline) const {
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd entry{fd, events, 0};
    const int count = ::poll(&entry, 1, static_cast<int>(std::min<std::int64_t>(left, kLookMilliseconds)));
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) return false;
    end_when_aborted();  // what is answered at once is done all the same
  }
}

Fd StoreClient::Impl::try_connect(Clock::time_point deadline, std::string& problem) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(options_.port);
  if (const int code = ::getaddrinfo(options_.address.c_str(), port.c_str(), &hints, &found); code != 0) {
    problem = fmt::format("{} (set MASTER_ADDR, or the endpoint, to a name or address that this node resolves)",
                          ::gai_strerror(code));
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    Fd fd(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) continue;
    int error = 0;
    if (::connect(fd.get(), address->ai_addr, address->ai_addrlen) != 0) error = errno;
    if (error == EINPROGRESS) {
      if (!wait_ready(fd.get(), POLLOUT, deadline)) {
        problem = "no answer";
        continue;
      }
      socklen_t length = sizeof(error);
      ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    }
    if (error == 0) {
      const int on = 1;
      ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      return fd;
    }
    problem = std::strerror(error);
  }
  return {};
}

Fd StoreClient::Impl::connect() {
  if (options_.port <= 0 || options_.port > 65535) {
    throw bad_input(fmt::format("rendezvous port {} is out of range", options_.port), "use 1 to 65535");
  }
  const auto deadline = Clock::now() + options_.connect_timeout;
  std::string problem = "no answer";
  auto pause = milliseconds(10);
  while (true) {
    if (Fd fd = try_connect(deadline, problem)) {
      greet(fd.get(), deadline);
      return fd;
    }
    end_when_aborted();
    if (Clock::now() + pause >= deadline) break;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, milliseconds(500));
  }
  throw Fault(FaultKind::kTimeout, -1,
              fmt::format("{}: {} within {} ms", place(), problem, options_.connect_timeout.count()));
}

void StoreClient::Impl::greet(int fd, Clock::time_point deadline) {
  const std::string answer =
      exchange(fd, wire::Writer(static_cast<std::uint8_t>(Op::kHello)).u32(wire::kMagic).text(options_.token).finish(),
               deadline);
  if (answer.empty() || static_cast<Status>(answer[0]) != Status::kOk) {
    throw bad_input(place() + " refused the token", "set LOCKSTEP_TOKEN to the secret of this run");
  }
}

Fd StoreClient::Impl::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      Fd fd = std::move(idle_.back());
      idle_.pop_back();
      return fd;
    }
  }
  return connect();
}

void StoreClient::Impl::give_back(Fd fd) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(fd));
}

void StoreClient::Impl::receive_exactly(int fd, char* data, std::size_t count, Clock::time_point deadline) {
  while (count > 0) {
    if (!wait_ready(fd, POLLIN, deadline)) throw Fault(FaultKind::kTimeout, -1, place() + " did not answer in time");
    const ssize_t got = ::recv(fd, data, count, 0);
    if (got == 0) throw lost("closed the connection");
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got < 0) throw lost(std::strerror(errno));
    data += got;
    count -= static_cast<std::size_t>(got);
  }
}

std::string StoreClient::Impl::exchange(int fd, const std::string& frame, Clock::time_point deadline) {
  std::size_t sent = 0;
  while (sent < frame.size()) {
    const ssize_t count = ::send(fd, frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL);
    if (count >= 0) {
      sent += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN) {
      if (!wait_ready(fd, POLLOUT, deadline)) throw Fault(FaultKind::kTimeout, -1, place() + " does not read");
    } else if (errno != EINTR) {
      throw lost(std::strerror(errno));
    }
  }
  char head[4];
  receive_exactly(fd, head, sizeof(head), deadline);
  const std::size_t length = wire::frame_length(head);
  if (length == 0 || length > wire::kMaxFrameBytes) throw lost("sent a malformed reply");
  std::string reply(length, '\0');
  receive_exactly(fd, reply.data(), length, deadline);
  return reply;
}

std::string StoreClient::Impl::call(const std::string& frame, milliseconds timeout, const char* what) {
  Fd fd = take();
  // A connection on which anything went wrong is not given back: its next reply might belong to this request.
  const std::string reply = exchange(fd.get(), frame, Clock::now() + timeout + kReplyGrace);
  give_back(std::move(fd));
  const auto status = static_cast<Status>(reply[0]);
  std::string fields = reply.substr(1);
  if (status == Status::kOk) return fields;
  try {
    wire::Reader reader(fields);
    if (status == Status::kTimeout) {
      throw Fault(FaultKind::kTimeout, -1,
                  fmt::format("{}: key \"{}\" did not appear within {} ms ({})", place(), reader.text(kMaxKeyBytes),
                              timeout.count(), what));
    }
    throw bad_input(reader.text(wire::kMaxFrameBytes));
  } catch (const wire::MalformedFrame&) {
    throw lost("sent a malformed reply");
  }
}

namespace {

wire::Writer request(Op op) { return wire::Writer(static_cast<std::uint8_t>(op)); }

std::uint32_t wire_timeout(milliseconds timeout) {
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(timeout.count(), 0, 0xffffffff));
}

void check_value(const std::string& key, std::string_view value) {
  check_key(key);
  if (value.size() > kMaxValueBytes) {
    throw bad_input(fmt::format("store value of {} bytes for \"{}\"", value.size(), key),
                    fmt::format("use at most {} bytes", kMaxValueBytes));
  }
}

// Reads a reply; a server that answers nonsense is a lost server.
template <typename Read>
auto parse(const std::string& fields, Read read) {
  try {
    wire::Reader reader(fields);
    auto value = read(reader);
    reader.end();
    return value;
  } catch (const wire::MalformedFrame&) {
    throw Fault(FaultKind::kPeerLost, -1, "the rendezvous store sent a malformed reply");
  }
}

}  // namespace

StoreClient::StoreClient(StoreClientOptions options)
    : call_timeout_(options.call_timeout), impl_(std::make_unique<Impl>(std::move(options))) {}
StoreClient::~StoreClient() = default;

void StoreClient::set(const std::string& key, std::string_view value) {
  check_value(key, value);
  impl_->call(request(Op::kSet).text(key).text(value).finish(), call_timeout_, "set");
}

std::string StoreClient::get(const std::string& key, milliseconds timeout) {
  check_key(key);
  const std::string fields =
      impl_->call(request(Op::kGet).u32(wire_timeout(timeout)).u32(1).text(key).finish(), timeout, "get");
  return parse(fields, [](wire::Reader& reader) { return reader.text(kMaxValueBytes); });
}

std::optional<std::string> StoreClient::try_get(const std::string& key) {
  check_key(key);
  const std::string fields = impl_->call(request(Op::kTryGet).text(key).finish(), call_timeout_, "try_get");
  return parse(fields, [](wire::Reader& reader) -> std::optional<std::string> {
    const bool present = reader.u8() != 0;
    std::string value = reader.text(kMaxValueBytes);
    return present ? std::optional(std::move(value)) : std::nullopt;
  });
}

std::int64_t StoreClient::add(const std::string& key, std::int64_t delta) {
  check_key(key);
  const std::string fields = impl_->call(request(Op::kAdd).text(key).i64(delta).finish(), call_timeout_, "add");
  return parse(fields, [](wire::Reader& reader) { return reader.i64(); });
}

bool StoreClient::compare_set(const std::string& key, const std::optional<std::string>& expected,
                              std::string_view desired) {
  check_value(key, desired);
  check_value(key, expected.value_or(""));
  const std::string fields = impl_->call(
      request(Op::kCompareSet).text(key).u8(expected.has_value()).text(expected.value_or("")).text(desired).finish(),
      call_timeout_, "compare_set");
  return parse(fields, [](wire::Reader& reader) { return reader.u8() != 0; });
}

void StoreClient::wait(const std::vector<std::string>& keys, milliseconds timeout) {
  check_keys(keys);
  auto frame = request(Op::kWait).u32(wire_timeout(timeout)).u32(static_cast<std::uint32_t>(keys.size()));
  for (const auto& key : keys) frame.text(key);
  impl_->call(frame.finish(), timeout, "wait");
}

bool StoreClient::remove(const std::string& key) {
  check_key(key);
  const std::string fields = impl_->call(request(Op::kRemove).text(key).finish(), call_timeout_, "remove");
  return parse(fields, [](wire::Reader& reader) { return reader.u8() != 0; });
}

}  // namespace lockstep::elastic
