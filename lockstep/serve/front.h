// What becomes of a request before and after the stores are asked; knows no sockets.
#pragma once

#include <optional>
#include <string>

#include "lockstep/serve/api.h"
#include "lockstep/serve/guard.h"
#include "lockstep/serve/page.h"
#include "lockstep/serve/request.h"

namespace lockstep::serve {

// Thread-safe.
class Front {
 public:
  Front(GuardOptions guard, const std::filesystem::path& page, const std::string& dcgm_url = {})
      : guard_(std::move(guard)), page_(page), api_(dcgm_url) {}

  // The answer to whatever needs no store: those turned away, files of the page, what is not there.
  std::optional<Response> answer_now(const Request& request) const;

  // The topic of a request for a stream (live.h); nothing for others.
  static std::optional<std::string> topic_of(const Request& request);

  // The answer of the stores, made fit for the client. Of a stream: 200, or why there is none.
  Response ask(const Request& request, Stores& stores);

  // Requests of the same key have the same answer for a moment; "" where something is changed.
  static std::string key_of(const Request& request);

 private:
  Guard guard_;
  Page page_;
  Api api_;
};

// Status line and headers with the empty line after them. `version` is 10 or 11. `length` of the body; nothing: it
// comes in chunks.
std::string head_of(const Response& response, int version, bool keep_alive, std::optional<std::size_t> length);

}  // namespace lockstep::serve
