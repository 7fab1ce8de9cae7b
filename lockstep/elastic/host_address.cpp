#include "lockstep/elastic/host_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>

#include <memory>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::elastic {
namespace {

std::string numeric(const sockaddr* address) {
  char text[INET_ADDRSTRLEN] = {};
  inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof(text));
  return text;
}

bool is_loopback(const std::string& address) { return address.empty() || address.rfind("127.", 0) == 0; }

// Connecting a datagram socket makes the kernel choose a route and sends nothing.
std::string address_towards(const std::string& peer) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(peer.c_str(), "9", &hints, &found); error != 0) {
    throw environment_error("host " + peer + " is unknown: " + gai_strerror(error), "check MASTER_ADDR");
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> guard(found, freeaddrinfo);
  const UniqueFd probe(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in mine{};
  socklen_t size = sizeof(mine);
  if (!probe || connect(probe.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      getsockname(probe.get(), reinterpret_cast<sockaddr*>(&mine), &size) != 0) {
    return {};
  }
  return numeric(reinterpret_cast<const sockaddr*>(&mine));
}

}  // namespace

std::string address_of_this_host(const std::string& peer) {
  if (const std::string address = address_towards(peer); !is_loopback(address)) return address;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) all = nullptr;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> guard(all, freeifaddrs);
  for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET || (entry->ifa_flags & IFF_UP) == 0)
      continue;
    if (const std::string address = numeric(entry->ifa_addr); !is_loopback(address)) return address;
  }
  throw environment_error("this host has no address that other nodes could reach", "bring a network interface up");
}

}  // namespace lockstep::elastic
