// Connections to other machines that are begun without waiting for them.
#pragma once

#include <netdb.h>

#include <memory>
#include <string>

#include "lockstep/base/file.h"

namespace lockstep {

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

// Stream addresses of a host; none when it is unknown, and `code` is getaddrinfo's then.
Addresses find_addresses(const std::string& host, int port, int flags, int& code);

// Begins to connect and does not wait: the socket is writable when it is done. Empty when the host is unknown or cannot
// be reached.
UniqueFd begin_to_connect(const std::string& host, int port);

}  // namespace lockstep
