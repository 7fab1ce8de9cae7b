// One thread, poll(): rendezvous is a few small messages per rank, and a single thread makes every operation atomic.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <unordered_map>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/elastic/sockets.h"
#include "lockstep/elastic/store.h"
#include "lockstep/elastic/store_wire.h"

namespace lockstep::elastic {
namespace {

using Clock = std::chrono::steady_clock;
using wire::Fd;
using wire::Op;
using wire::Status;

constexpr auto kHelloLimit = std::chrono::seconds(10);
constexpr std::size_t kMaxUnsentBytes = 4 * kMaxValueBytes;

struct Connection {
  Fd fd;
  std::string in;
  std::string out;
  bool greeted = false;
  Clock::time_point greet_by;
  // A get or wait that has not been answered yet; later requests on this connection stay in `in` until it is.
  bool waiting = false;
  bool wants_value = false;
  std::vector<std::string> keys;
  Clock::time_point deadline;
};

UniqueFd listen(const StoreServerOptions& options) {
  if (options.token.size() > wire::kMaxTokenBytes) {
    throw bad_input(fmt::format("the token has {} bytes", options.token.size()),
                    fmt::format("use at most {}", wire::kMaxTokenBytes));
  }
  return listen_on({"the rendezvous store", options.address, options.port, options.token});
}

wire::Writer reply(Status status) { return wire::Writer(static_cast<std::uint8_t>(status)); }

}  // namespace

class StoreServer::Impl {
 public:
  explicit Impl(StoreServerOptions given) : options(std::move(given)), listener_(listen(options)) {
    port = port_of(listener_.get());
    stop_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    thread_ = std::thread([this] { serve(); });
  }

  ~Impl() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(stop_.get(), &one, sizeof(one));
    thread_.join();
  }

  StoreServerOptions options;
  int port = 0;

 private:
  void serve();
  int poll_timeout_ms() const;
  void accept_all();
  bool receive(Connection& connection);       // false: close it
  bool handle_input(Connection& connection);  // false: close it
  bool greet(Connection& connection, std::string_view frame);
  bool handle(Connection& connection, std::string_view frame);
  std::string execute(Op op, wire::Reader& fields);
  void begin_wait(Connection& connection, bool wants_value, wire::Reader& fields);
  bool try_finish_wait(Connection& connection);
  void expire_waits();
  static bool flush(Connection& connection);  // false: close it

  UniqueFd listener_;
  Fd stop_;
  StoreTable table_;
  bool changed_ = false;  // a key appeared since the waiting connections were last looked at
  std::unordered_map<int, Connection> connections_;
  std::thread thread_;
};

void StoreServer::Impl::serve() {
  std::vector<pollfd> polls;
  while (true) {
    polls.clear();
    polls.push_back({stop_.get(), POLLIN, 0});
    polls.push_back({listener_.get(), POLLIN, 0});
    for (const auto& [fd, connection] : connections_) {
      polls.push_back({fd, static_cast<short>(connection.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    }
    ::poll(polls.data(), polls.size(), poll_timeout_ms());
    if (polls[0].revents != 0) return;
    for (std::size_t i = 2; i < polls.size(); ++i) {
      if (polls[i].revents == 0) continue;
      Connection& connection = connections_.at(polls[i].fd);
      bool keep = (polls[i].revents & (POLLIN | POLLHUP | POLLERR)) == 0 || receive(connection);
      keep = keep && flush(connection);
      if (!keep) connections_.erase(polls[i].fd);
    }
    expire_waits();
    // After the clients: an fd number freed above may come back here, never in the middle of the loop.
    if (polls[1].revents != 0) accept_all();
  }
}

int StoreServer::Impl::poll_timeout_ms() const {
  Clock::time_point next = Clock::now() + std::chrono::seconds(60);
  for (const auto& [fd, connection] : connections_) {
    if (!connection.greeted) next = std::min(next, connection.greet_by);
    if (connection.waiting) next = std::min(next, connection.deadline);
  }
  const auto left = std::chrono::ceil<milliseconds>(next - Clock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(0, left));
}

void StoreServer::Impl::accept_all() {
  while (true) {
    Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      // Out of descriptors: the listener stays readable, so pause instead of spinning on it.
      if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(milliseconds(10));
      return;
    }
    if (static_cast<int>(connections_.size()) >= options.max_connections) continue;  // Fd closes it
    const int on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    ::setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    const int number = fd.get();
    Connection& connection = connections_[number];
    connection.fd = std::move(fd);
    connection.greet_by = Clock::now() + kHelloLimit;
  }
}

bool StoreServer::Impl::receive(Connection& connection) {
  char chunk[16384];
  while (true) {
    const ssize_t count = ::recv(connection.fd.get(), chunk, sizeof(chunk), 0);
    if (count == 0) return false;
    if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    connection.in.append(chunk, static_cast<std::size_t>(count));
    if (!handle_input(connection)) return false;
    if (connection.in.size() > wire::kMaxFrameBytes + 4) return false;
  }
}

bool StoreServer::Impl::handle_input(Connection& connection) {
  std::size_t used = 0;
  bool keep = true;
  while (keep && !connection.waiting && connection.in.size() - used >= 4) {
    const std::size_t length = wire::frame_length(connection.in.data() + used);
    const std::size_t limit = connection.greeted ? wire::kMaxFrameBytes : wire::kMaxHelloBytes;
    if (length == 0 || length > limit) return false;
    if (connection.in.size() - used - 4 < length) break;
    const std::string frame = connection.in.substr(used + 4, length);
    used += 4 + length;
    keep = connection.greeted ? handle(connection, frame) : greet(connection, frame);
  }
  connection.in.erase(0, used);
  return keep && connection.out.size() <= kMaxUnsentBytes;
}

bool StoreServer::Impl::greet(Connection& connection, std::string_view frame) {
  try {
    wire::Reader fields(frame);
    if (static_cast<Op>(fields.u8()) != Op::kHello || fields.u32() != wire::kMagic) return false;
    const std::string token = fields.text(wire::kMaxTokenBytes);
    fields.end();
    connection.greeted = equal_tokens(token, options.token);
  } catch (const wire::MalformedFrame&) {
    return false;
  }
  connection.out += reply(connection.greeted ? Status::kOk : Status::kBadToken).finish();
  if (!connection.greeted) flush(connection);
  return connection.greeted;
}

bool StoreServer::Impl::handle(Connection& connection, std::string_view frame) {
  try {
    wire::Reader fields(frame);
    const auto op = static_cast<Op>(fields.u8());
    if (op == Op::kGet || op == Op::kWait) {
      begin_wait(connection, op == Op::kGet, fields);
    } else {
      connection.out += execute(op, fields);
    }
  } catch (const wire::MalformedFrame&) {
    return false;
  } catch (const UserError& error) {
    connection.out += reply(Status::kRejected).text(error.what()).finish();
  }
  return true;
}

std::string StoreServer::Impl::execute(Op op, wire::Reader& fields) {
  const std::string key = fields.text(kMaxKeyBytes);
  if (op == Op::kSet) {
    const std::string value = fields.text(kMaxValueBytes);
    fields.end();
    table_.set(key, value);
    changed_ = true;
    return reply(Status::kOk).finish();
  }
  if (op == Op::kTryGet) {
    fields.end();
    const std::string* value = table_.find(key);
    return reply(Status::kOk).u8(value != nullptr).text(value == nullptr ? "" : *value).finish();
  }
  if (op == Op::kAdd) {
    const std::int64_t delta = fields.i64();
    fields.end();
    const std::int64_t value = table_.add(key, delta);
    changed_ = true;
    return reply(Status::kOk).i64(value).finish();
  }
  if (op == Op::kCompareSet) {
    const bool has_expected = fields.u8() != 0;
    std::string expected = fields.text(kMaxValueBytes);
    const std::string desired = fields.text(kMaxValueBytes);
    fields.end();
    const bool stored = table_.compare_set(key, has_expected ? std::optional(expected) : std::nullopt, desired);
    changed_ = changed_ || stored;
    return reply(Status::kOk).u8(stored).finish();
  }
  if (op == Op::kRemove) {
    fields.end();
    return reply(Status::kOk).u8(table_.remove(key)).finish();
  }
  throw wire::MalformedFrame{};
}

void StoreServer::Impl::begin_wait(Connection& connection, bool wants_value, wire::Reader& fields) {
  const auto timeout = milliseconds(fields.u32());
  const std::uint32_t count = fields.u32();
  if (count > kMaxKeysPerWait || (wants_value && count != 1)) throw wire::MalformedFrame{};
  std::vector<std::string> keys;
  for (std::uint32_t i = 0; i < count; ++i) keys.push_back(fields.text(kMaxKeyBytes));
  fields.end();
  connection.waiting = true;
  connection.wants_value = wants_value;
  connection.keys = std::move(keys);
  connection.deadline = Clock::now() + timeout;
  try_finish_wait(connection);
}

bool StoreServer::Impl::try_finish_wait(Connection& connection) {
  // From the back: keys found present are dropped from the list unless the value is asked for.
  while (!connection.keys.empty()) {
    const std::string* value = table_.find(connection.keys.back());
    if (value == nullptr) return false;
    if (connection.wants_value) {
      connection.out += reply(Status::kOk).text(*value).finish();
      connection.waiting = false;
      return true;
    }
    connection.keys.pop_back();
  }
  connection.out += reply(Status::kOk).finish();
  connection.waiting = false;
  return true;
}

void StoreServer::Impl::expire_waits() {
  const auto now = Clock::now();
  std::vector<int> closing;
  bool again = true;
  while (again) {
    // A wait that ends lets the requests queued behind it run, and those may set keys that others wait for.
    again = false;
    const bool look = std::exchange(changed_, false);
    for (auto& [fd, connection] : connections_) {
      if (!connection.waiting || !(look || now >= connection.deadline)) continue;
      if (!try_finish_wait(connection) && now >= connection.deadline) {
        connection.out += reply(Status::kTimeout).text(connection.keys.back()).finish();
        connection.waiting = false;
      }
      if (connection.waiting) continue;
      if (!handle_input(connection) || !flush(connection)) closing.push_back(fd);
      again = again || changed_;
    }
  }
  for (const auto& [fd, connection] : connections_) {
    if (!connection.greeted && now >= connection.greet_by) closing.push_back(fd);
  }
  for (const int fd : closing) connections_.erase(fd);
}

bool StoreServer::Impl::flush(Connection& connection) {
  while (!connection.out.empty()) {
    const ssize_t sent = ::send(connection.fd.get(), connection.out.data(), connection.out.size(), MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    connection.out.erase(0, static_cast<std::size_t>(sent));
  }
  return true;
}

StoreServer::StoreServer(StoreServerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
StoreServer::~StoreServer() = default;
const std::string& StoreServer::address() const { return impl_->options.address; }
int StoreServer::port() const { return impl_->port; }

}  // namespace lockstep::elastic
