#include "lockstep/elastic/host_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>

#include <memory>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::elastic {
namespace {

std::string numeric(const sockaddr* address) {
  char text[INET_ADDRSTRLEN] = {};
  inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof(text));
  return text;
}

bool is_loopback(const std::string& address) { return address.empty() || address.rfind("127.", 0) == 0; }

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

// `error` is getaddrinfo's.
Addresses look_up(const std::string& host, int& error) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  error = getaddrinfo(host.c_str(), "9", &hints, &found);
  return {error == 0 ? found : nullptr, freeaddrinfo};
}

Addresses resolve(const std::string& host) {
  int error = 0;
  Addresses found = look_up(host, error);
  if (error != 0) {
    throw environment_error("host " + host + " is unknown: " + gai_strerror(error), "check MASTER_ADDR or --nodes");
  }
  return found;
}

// Connecting a datagram socket makes the kernel choose a route and sends nothing.
std::string address_towards(const std::string& peer) {
  const Addresses found = resolve(peer);
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

std::vector<Interface> interfaces_here() {
  std::vector<Interface> found;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) all = nullptr;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> guard(all, freeifaddrs);
  for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET || (entry->ifa_flags & IFF_UP) == 0)
      continue;
    found.push_back({entry->ifa_name, numeric(entry->ifa_addr)});
  }
  return found;
}

std::string address_of_interface(const std::string& name) {
  std::vector<std::string> known;
  for (const Interface& interface : interfaces_here()) {
    if (interface.name == name) return interface.address;
    known.push_back(interface.name + " (" + interface.address + ")");
  }
  throw bad_input("there is no network interface \"" + printable(name) + "\" that is up and has an IPv4 address",
                  known.empty() ? "bring one up" : "choose one of " + join(known, ", "));
}

std::string interface_of_address(const std::string& address) {
  for (const Interface& interface : interfaces_here()) {
    if (interface.address == address) return interface.name;
  }
  return "";
}

bool is_known_host(const std::string& host) {
  int error = 0;
  look_up(host, error);
  return error == 0;
}

std::string address_of_this_host(const std::string& peer) {
  if (std::string address = address_towards(peer); !is_loopback(address)) return address;
  for (const Interface& interface : interfaces_here()) {
    if (!is_loopback(interface.address)) return interface.address;
  }
  throw environment_error("this host has no address that other nodes could reach", "bring a network interface up");
}

void require_on_interface(const std::string& host, const std::string& name, const std::string& what) {
  const std::string own = address_of_interface(name);
  const Addresses found = resolve(host);
  std::string other;
  for (const addrinfo* entry = found.get(); entry != nullptr; entry = entry->ai_next) {
    const std::string address = numeric(entry->ai_addr);
    if (address == own) return;
    if (other.empty()) other = address;
  }
  const bool written_so = host == other || host == "localhost";
  if (is_loopback(other) && !written_so) return;
  throw bad_input(what + " is " + other + ", and " + name + " has " + own,
                  "name every node by its address on that interface, or choose another interface");
}

}  // namespace lockstep::elastic
