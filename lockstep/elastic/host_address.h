// The address under which other nodes reach this one.
#pragma once

#include <string>

namespace lockstep::elastic {

// Numeric IPv4 address of the interface that leads to `peer`. Where that is loopback (a host's own name often is
// 127.0.1.1), the first other interface that is up. Throws UserError (environment) when there is none or the name is
// unknown. Resolves the name, sends nothing.
std::string address_of_this_host(const std::string& peer);

}  // namespace lockstep::elastic
