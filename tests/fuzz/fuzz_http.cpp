// What a stranger writes into a request, as far as we read it ourselves: the target, the names, cookies and forms.
#include <algorithm>
#include <string>

#include "fuzz_one.h"
#include "lockstep/serve/guard.h"

// The first line is the target, the next ones are Host, Origin, Cookie, Authorization and Accept, the rest is the body.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto line = [&] {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view found = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return std::string(found);
  };
  lockstep::serve::Request request;
  const auto target = lockstep::serve::parse_target(line());
  if (target) {
    request.target = *target;
    for (const std::string& segment : target->path) {
      lockstep::fuzz::require(!segment.empty() && segment != "." && segment != "..", "a segment that is a name");
      lockstep::fuzz::require(segment.find_first_of(std::string("/\\\0", 3)) == std::string::npos, "one segment");
    }
  }
  for (const char* name : {"host", "origin", "cookie", "authorization", "accept"}) request.headers[name] = line();
  lockstep::serve::accepts(request.headers["accept"], "gzip");
  lockstep::serve::parse_place(request.headers["accept"]);
  request.body = text;
  request.method = request.body.empty() ? "GET" : "POST";
  const lockstep::serve::Guard open({}), closed({.token = "0123456789abcdef"});
  open.check(request);
  const auto answer = closed.check(request);
  // Whoever got in must have shown the token.
  const bool shown = request.headers["cookie"].find("0123456789abcdef") != std::string::npos ||
                     request.headers["authorization"].find("0123456789abcdef") != std::string::npos;
  lockstep::fuzz::require(answer || shown, "a token was shown");
  return 0;
}
