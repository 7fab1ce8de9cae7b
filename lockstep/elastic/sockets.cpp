#include "lockstep/elastic/sockets.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <random>

#include "lockstep/base/error.h"

namespace lockstep::elastic {
namespace {

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return (ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24) == 127;
  }
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

}  // namespace

UniqueFd listen_on(const ListenOptions& options) {
  if (options.port < 0 || options.port > 65535) {
    throw bad_input(fmt::format("{}: port {} is out of range", options.what, options.port), "use 0 to 65535");
  }
  int code = 0;
  const Addresses found = find_addresses(options.address, options.port, AI_PASSIVE, code);
  if (!found) {
    throw environment_error(fmt::format("{}: address \"{}\": {}", options.what, options.address, ::gai_strerror(code)),
                            "name an address of this machine");
  }
  if (!is_loopback(found->ai_addr) && options.token.empty()) {
    throw bad_input(fmt::format("{} may not listen on {} without a token", options.what, options.address),
                    "set LOCKSTEP_TOKEN to the same secret on every node, or listen on 127.0.0.1");
  }
  UniqueFd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(fd.get(), 1024) != 0) {
    if (errno == EADDRINUSE) {
      throw environment_error(fmt::format("port {} on {} is in use", options.port, options.address),
                              "choose another port, or 0 for any free one");
    }
    throw environment_error(
        fmt::format("cannot listen on {} port {}: {}", options.address, options.port, std::strerror(errno)),
        "name an address of this machine and a port that you may open");
  }
  return fd;
}

int port_of(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

std::string peer_host(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char host[NI_MAXHOST] = {};
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  const int code =
      ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  return code == 0 ? host : "";
}

int find_free_port() {
  constexpr int kFirst = 20000, kLast = 32000, kTries = 1000;
  std::random_device random;
  for (int tries = 0; tries < kTries; ++tries) {
    const int port = kFirst + static_cast<int>(random() % (kLast - kFirst));
    const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    // Without SO_REUSEADDR: also ports with connections that have just ended are left alone.
    if (fd && ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return port;
  }
  throw environment_error(fmt::format("no free port between {} and {}", kFirst, kLast), "end what uses them");
}

void expect_answers_within(int fd, int milliseconds) {
  const int on = 1;
  const unsigned limit = static_cast<unsigned>(milliseconds);
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof(limit));
}

double seconds_since_answer(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || info.tcpi_unacked == 0) return 0.0;
  return info.tcpi_last_ack_recv / 1000.0;
}

bool equal_tokens(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace lockstep::elastic
