// Sockets of the servers and links between agents.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/connect.h"
#include "lockstep/base/file.h"

namespace lockstep::elastic {

struct ListenOptions {
  std::string what;     // "the rendezvous store": begins messages
  std::string address;  // numeric or a name of this machine
  int port = 0;         // 0: the system picks one
  std::string token;    // must not be empty when `address` is beyond loopback
};

// A non-blocking socket that listens. Throws bad_input for an address beyond loopback without a token,
// environment_error when the port is in use or the address is not of this machine.
UniqueFd listen_on(const ListenOptions& options);
int port_of(int fd);
// A port that nobody has now, for a program that will listen on it on every interface; below those that the system
// hands out, so that no connection takes it in between. Throws environment_error when there is none.
int find_free_port();

// The numeric address of the other end; "" where it is not known.
std::string peer_host(int fd);

// The connection is closed when the other machine leaves unanswered for this long what was sent again.
void expect_answers_within(int fd, int milliseconds);

// How long the other machine has left unanswered what was sent to it over this connection; 0: nothing is.
double seconds_since_answer(int fd);

// Takes the same time for every wrong token of a length, so that a peer cannot guess it byte by byte.
bool equal_tokens(std::string_view a, std::string_view b);

}  // namespace lockstep::elastic
