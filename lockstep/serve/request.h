// One HTTP request and its answer as plain values: what the routes see, whatever library speaks to the socket.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::serve {

// The part of a request line after the method, taken apart.
struct Target {
  std::vector<std::string> path;             // segments, percent-decoded: "/api/v1/runs" is {"api", "v1", "runs"}
  std::map<std::string, std::string> query;  // percent-decoded; of a key that comes twice the last one counts
};

inline constexpr std::size_t kLongestTarget = 4096;

// Nothing for what no client of ours sends: not beginning with '/', longer than kLongestTarget, a broken percent code,
// a segment that is empty (but the last), ".", ".." or holds a '/', a backslash, a control character or bytes that are
// not UTF-8. So no segment can name anything outside a folder.
std::optional<Target> parse_target(std::string_view target);

struct Request {
  std::string method = "GET";
  Target target;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  bool encrypted = false;

  std::string_view header(const std::string& name) const;  // "" when absent
  // Of the query; UserError (bad input) when it is there and no number, or outside the bounds.
  std::int64_t integer(const std::string& key, std::int64_t fallback, std::int64_t least, std::int64_t most) const;
  std::string text(const std::string& key, const std::string& fallback = {}) const;
};

// The value of a cookie in a Cookie header, "" when it is not there.
std::string_view cookie(std::string_view header, std::string_view name);

// "host:port", "[::1]:8642" -> the host without port and brackets, in lower case; nothing when it is none.
std::optional<std::string> host_of_authority(std::string_view authority);
// "http://host:port" -> "host:port", in lower case, without the default port of its scheme; nothing when it is no web
// origin ("null").
std::optional<std::string> authority_of_origin(std::string_view origin);

// A list of encodings or media types accepts `name` (a q of 0 refuses it).
bool accepts(std::string_view header, std::string_view name);

// Where a viewer that comes back left off: the id of the last event it had. Nothing known: -1.
struct LivePlace {
  std::int64_t step = -1, time_ms = -1;
};
// "120-1731900000123", or a step alone; anything else is the beginning.
LivePlace parse_place(std::string_view id);

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::shared_ptr<const std::string> body = std::make_shared<const std::string>();
  std::string encoding;                                      // "" or "gzip": of the body as it is
  std::string etag;                                          // with quotes; "": none
  std::string cache = "no-cache";                            // Cache-Control
  std::vector<std::pair<std::string, std::string>> headers;  // more of them
};

Response answer_text(int status, std::string content_type, std::string text);
// {"error": what}
Response answer_error(int status, const std::string& what);

// The same answer as the request may have it: 304 where the client has it, without a body for HEAD.
Response for_client(const Request& request, Response response);

}  // namespace lockstep::serve
