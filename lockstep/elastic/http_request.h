// One plain HTTP request at a time, for the metadata services of clouds: small answers, no encryption.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace lockstep::elastic {

struct HttpRequest {
  std::string method = "GET";
  std::string url;  // http://host[:port][/path]
  std::map<std::string, std::string> headers;
  double timeout_seconds = 2.0;  // for all of it, but for looking up a host's name
};

struct HttpAnswer {
  int status = 0;
  std::string body;  // at most 64 KiB of it
};

// Throws bad_input when it is not a URL as above.
void require_http_url(const std::string& url);

// Nothing when nobody answers in time, or not in HTTP. Throws bad_input when the URL is not one.
std::optional<HttpAnswer> ask_http(const HttpRequest& request);

}  // namespace lockstep::elastic
