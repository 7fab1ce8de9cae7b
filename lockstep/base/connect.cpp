#include "lockstep/base/connect.h"

#include <sys/socket.h>

#include <cerrno>

namespace lockstep {

Addresses find_addresses(const std::string& host, int port, int flags, int& code) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  return {code == 0 ? found : nullptr, &::freeaddrinfo};
}

UniqueFd begin_to_connect(const std::string& host, int port) {
  int code = 0;
  const Addresses found = find_addresses(host, port, 0, code);
  if (!found) return {};
  UniqueFd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return {};
  if (::connect(fd.get(), found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS) return {};
  return fd;
}

}  // namespace lockstep
