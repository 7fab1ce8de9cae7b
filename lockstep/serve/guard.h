// Who may ask what. Beyond loopback everybody shows the token; on loopback a page of another site, or one that made its
// name resolve to this machine (DNS rebinding), is turned away.
#pragma once

#include <optional>
#include <string>

#include "lockstep/serve/request.h"

namespace lockstep::serve {

struct GuardOptions {
  std::string token;          // "": nobody is asked for one, and Host must name this machine by a loopback name
  bool behind_proxy = false;  // somebody in front of us does the encryption: cookies are for https only
};

// Immutable, so any thread may ask it.
class Guard {
 public:
  explicit Guard(GuardOptions options) : options_(std::move(options)) {}

  // The answer to whoever is turned away, or to the exchange of the token for a cookie (/login); nothing when the
  // request may go on. Never says whether a run or file exists.
  std::optional<Response> check(const Request& request) const;

 private:
  std::optional<Response> check_origin(const Request& request) const;
  bool knows_token(const Request& request) const;
  Response login(const Request& request) const;

  GuardOptions options_;
};

// 127.0.0.0/8, ::1 and "localhost".
bool is_loopback_name(const std::string& host);

}  // namespace lockstep::serve
