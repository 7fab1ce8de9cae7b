#include "lockstep/comm/plugins/tcp/door.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "lockstep/base/error.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kMostVisitors = 256;
constexpr auto kPatience = std::chrono::seconds(5);  // with a visitor who says nothing
constexpr auto kRetryPause = std::chrono::milliseconds(20);
constexpr char kWelcome[8] = {'w', 'e', 'l', 'c', 'o', 'm', 'e', '\n'};

struct Endpoint {
  sockaddr_storage address{};
  socklen_t length = 0;
};

std::optional<Endpoint> resolve(const std::string& host, const std::string& port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return std::nullopt;
  Endpoint endpoint;
  std::memcpy(&endpoint.address, found->ai_addr, found->ai_addrlen);
  endpoint.length = found->ai_addrlen;
  freeaddrinfo(found);
  return endpoint;
}

std::optional<Endpoint> of_interface(const std::string& name) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return std::nullopt;
  std::optional<Endpoint> found;
  for (const ifaddrs* entry = all; entry != nullptr && !found; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || name != entry->ifa_name) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    found.emplace();
    found->length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&found->address, entry->ifa_addr, found->length);
  }
  freeifaddrs(all);
  return found;
}

// "192.0.2.7 40123" of a bound socket.
std::pair<std::string, std::string> name_of(int fd) {
  Endpoint endpoint;
  endpoint.length = sizeof(endpoint.address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&endpoint.address), &endpoint.length);
  char host[NI_MAXHOST] = {}, port[NI_MAXSERV] = {};
  getnameinfo(reinterpret_cast<sockaddr*>(&endpoint.address), endpoint.length, host, sizeof(host), port, sizeof(port),
              NI_NUMERICHOST | NI_NUMERICSERV);
  return {host, port};
}

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

// Waits until `fd` is ready for `events`; false at the deadline.
bool ready(int fd, short events, Clock::time_point deadline) {
  while (Clock::now() < deadline) {
    pollfd polled{fd, events, 0};
    if (poll(&polled, 1, milliseconds_until(deadline)) > 0) return true;
  }
  return false;
}

bool send_all(int fd, const void* data, std::size_t bytes, Clock::time_point deadline) {
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(fd, next, bytes, MSG_NOSIGNAL);
    if (sent > 0) {
      next += sent;
      bytes -= static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN && ready(fd, POLLOUT, deadline)) {
      continue;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool receive_all(int fd, void* data, std::size_t bytes, Clock::time_point deadline) {
  auto* next = static_cast<char*>(data);
  while (bytes > 0) {
    if (!ready(fd, POLLIN, deadline)) return false;
    const ssize_t got = ::recv(fd, next, bytes, 0);
    if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) return false;
    if (got < 0) continue;
    next += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

// One try; an empty socket where the other side is not there or does not know us (yet).
Socket try_knock(const Endpoint& there, const Knock& knock, Clock::time_point deadline) {
  Socket socket(::socket(there.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return {};
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&there.address), there.length) != 0) {
    if (errno != EINPROGRESS || !ready(socket.get(), POLLOUT, deadline)) return {};
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) return {};
  }
  char answer[sizeof(kWelcome)] = {};
  if (!send_all(socket.get(), &knock, sizeof(knock), deadline)) return {};
  if (!receive_all(socket.get(), answer, sizeof(answer), deadline)) return {};
  return std::memcmp(answer, kWelcome, sizeof(answer)) == 0 ? std::move(socket) : Socket();
}

// In a time that does not depend on where they differ.
bool equal(const char* a, const char* b, std::size_t bytes) {
  unsigned char difference = 0;
  for (std::size_t i = 0; i < bytes; ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this == &other) return *this;
  if (fd_ >= 0) ::close(fd_);
  fd_ = other.release();
  return *this;
}

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

Door::Door(const std::string& address, const std::string& interface_name) {
  const auto here = interface_name.empty() ? resolve(address, "0", AI_PASSIVE) : of_interface(interface_name);
  const std::string name = interface_name.empty() ? "address " + address : "interface " + interface_name;
  const auto fail = [&](const std::string& why) {
    return environment_error(fmt::format("tcp cannot use {}: {}", name, why),
                             "name an address or a network interface of this machine");
  };
  if (!here) throw fail("it is not known here");
  listener_ = Socket(::socket(here->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener_ || ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&here->address), here->length) != 0 ||
      ::listen(listener_.get(), 1024) != 0) {
    throw fail(std::strerror(errno));
  }
  const auto [host, port] = name_of(listener_.get());
  address_ = host;
  place_ = host + " " + port;
  wake_ = Socket(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) throw fail(std::strerror(errno));
  thread_ = std::thread([this] { run(); });
}

Door::~Door() {
  const std::uint64_t one = 1;
  while (::write(wake_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  thread_.join();
}

void Door::run() {
  while (true) {
    std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    auto next = Clock::now() + std::chrono::seconds(60);
    for (const Visitor& visitor : visitors_) {
      polled.push_back({visitor.socket.get(), POLLIN, 0});
      next = std::min(next, visitor.until);
    }
    if (poll(polled.data(), polled.size(), milliseconds_until(next)) < 0 && errno != EINTR) return;
    if (polled[0].revents != 0) return;
    for (std::size_t i = 0; i + 2 < polled.size(); ++i) {
      if (polled[i + 2].revents != 0) listen_to(visitors_[i]);
    }
    std::erase_if(visitors_, [](const Visitor& v) { return !v.socket || v.until <= Clock::now(); });
    if (polled[1].revents != 0) admit();
  }
}

void Door::admit() {
  while (true) {
    Socket socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) return;
    if (visitors_.size() >= kMostVisitors) visitors_.erase(visitors_.begin());  // the one that was silent longest
    visitors_.push_back({std::move(socket), {}, 0, Clock::now() + kPatience});
  }
}

void Door::listen_to(Visitor& visitor) {
  auto* bytes = reinterpret_cast<char*>(&visitor.said);
  const ssize_t got = ::recv(visitor.socket.get(), bytes + visitor.bytes, sizeof(Knock) - visitor.bytes, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    visitor.socket = Socket();
    return;
  }
  visitor.bytes += static_cast<std::size_t>(got);
  if (visitor.bytes == sizeof(Knock)) decide(visitor);
}

void Door::decide(Visitor& visitor) {
  const Knock& said = visitor.said;
  Socket socket = std::move(visitor.socket);
  const std::lock_guard lock(mutex_);
  const auto secret = secrets_.find(said.group);
  // A group that is not expected yet: the peer tries again.
  if (std::memcmp(said.magic, Knock().magic, sizeof(said.magic)) != 0 || secret == secrets_.end()) return;
  if (!equal(said.secret, secret->second.data(), Knock::kSecretBytes)) return;
  if (::send(socket.get(), kWelcome, sizeof(kWelcome), MSG_NOSIGNAL) != sizeof(kWelcome)) return;
  let_in_[{said.group, said.from}] = std::move(socket);
  arrived_.notify_all();
}

void Door::expect(std::uint64_t group, const std::string& secret) {
  LOCKSTEP_ASSERT(secret.size() == Knock::kSecretBytes, "a secret of the wrong length");
  const std::lock_guard lock(mutex_);
  secrets_[group] = secret;
}

Socket Door::accept(std::uint64_t group, int peer, Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  const std::tuple key(group, peer);
  if (!arrived_.wait_until(lock, deadline, [&] { return let_in_.count(key) > 0; })) {
    throw BackendError(FaultKind::kTimeout, peer, "did not come to the rendezvous in time");
  }
  auto node = let_in_.extract(key);
  return std::move(node.mapped());
}

void Door::forget(std::uint64_t group) {
  const std::lock_guard lock(mutex_);
  secrets_.erase(group);
  std::erase_if(let_in_, [&](const auto& entry) { return std::get<0>(entry.first) == group; });
}

Socket Door::knock(const std::string& place, const Knock& knock, Clock::time_point deadline) {
  const std::size_t space = place.find(' ');
  const auto there = space == std::string::npos
                         ? std::nullopt
                         : resolve(place.substr(0, space), place.substr(space + 1), AI_NUMERICHOST | AI_NUMERICSERV);
  if (!there) throw BackendError(FaultKind::kAborted, knock.to, "published a malformed address");
  while (Clock::now() < deadline) {
    // A door that took the connection and says nothing may be gone: the next try finds out.
    Socket socket = try_knock(*there, knock, std::min(deadline, Clock::now() + kPatience));
    if (socket) return socket;
    std::this_thread::sleep_for(kRetryPause);
  }
  throw BackendError(FaultKind::kTimeout, knock.to, "could not be reached at " + place);
}

std::string Door::make_secret() {
  std::string secret(Knock::kSecretBytes, '\0');
  for (std::size_t done = 0; done < secret.size();) {
    const ssize_t got = getrandom(secret.data() + done, secret.size() - done, 0);
    if (got < 0 && errno != EINTR) throw BackendError(FaultKind::kAborted, -1, "the kernel gives no random bytes");
    if (got > 0) done += static_cast<std::size_t>(got);
  }
  return secret;
}

}  // namespace lockstep::comm
