// The addresses of this host: by which other nodes reach it, and of each of its network interfaces.
#pragma once

#include <string>
#include <vector>

namespace lockstep::elastic {

struct Interface {
  std::string name;
  std::string address;  // numeric IPv4
};

// Interfaces that are up and have an IPv4 address, loopback too.
std::vector<Interface> interfaces_here();

// Numeric IPv4 address of the interface of that name. Throws bad_input that lists those there are.
std::string address_of_interface(const std::string& name);

// The name of the interface that has this address; "": none.
std::string interface_of_address(const std::string& address);

// Whether the name leads to an address now.
bool is_known_host(const std::string& host);

// Numeric IPv4 address of the interface that leads to `peer`. Where that is loopback (a host's own name often is
// 127.0.1.1), the first other interface that is up. Throws UserError (environment) when there is none or the name is
// unknown. Resolves the name, sends nothing.
std::string address_of_this_host(const std::string& peer);

// An address that others are told for this host must be one of the interface `name`, or they would not find what
// listens there alone. A name that is loopback only here may be another address elsewhere. `what` begins the message.
void require_on_interface(const std::string& host, const std::string& name, const std::string& what);

}  // namespace lockstep::elastic
