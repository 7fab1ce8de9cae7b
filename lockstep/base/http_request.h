// Plain HTTP, one request at a time and without encryption: the metadata services of clouds, the APIs of schedulers.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"

namespace lockstep {

struct HttpRequest {
  std::string method = "GET";
  std::string url;  // http://host[:port][/path]
  std::map<std::string, std::string> headers;
  std::string body;
  double timeout_seconds = 2.0;                    // for all of it, but for looking up a host's name
  std::size_t most_bytes = std::size_t{64} << 10;  // of the answer; what is beyond is cut off
};

struct HttpAnswer {
  int status = 0;
  std::string body;
};

// Throws bad_input when it is not a URL as above.
void require_http_url(const std::string& url);

// Nothing when nobody answers in time, or not in HTTP. Throws bad_input when the URL is not one.
std::optional<HttpAnswer> ask_http(const HttpRequest& request);

// The same for a caller that has other things to do: call advance() until it returns true.
class HttpExchange {
 public:
  explicit HttpExchange(const HttpRequest& request);
  // Does what can be done without waiting. Returns whether it is over.
  bool advance();
  // Waits at most so long for there to be something to do.
  void wait(int milliseconds) const;
  // Once it is over.
  std::optional<HttpAnswer> answer() const;

 private:
  bool send_more();
  bool receive_more();

  Deadline deadline_;
  std::size_t most_bytes_;
  std::string out_, in_;
  std::size_t sent_ = 0;
  UniqueFd fd_;
  bool over_ = false, complete_ = false;
};

}  // namespace lockstep
