#include "lockstep/serve/front.h"

#include <fmt/format.h>

#include <ctime>

#include "lockstep/base/text.h"
#include "lockstep/serve/gzip.h"

namespace lockstep::serve {
namespace {

constexpr std::size_t kWorthPacking = 1024;  // bytes

// Scripts and styles of our own files only; nothing inline, nothing from elsewhere, in nobody's frame.
constexpr std::string_view kSafety =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "X-Frame-Options: DENY\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n";

const char* reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 303:
      return "See Other";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 413:
      return "Content Too Large";
    case 421:
      return "Misdirected Request";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Error";
  }
}

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[40];
  const std::size_t size = std::strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return std::string(text, size);
}

bool is_program(const Request& request) {
  const auto& path = request.target.path;
  return !path.empty() && (path.front() == "api" || path.front() == "metrics");
}

bool only_reads(const Request& request) { return request.method == "GET" || request.method == "HEAD"; }

}  // namespace

std::optional<Response> Front::answer_now(const Request& request) const {
  if (auto refused = guard_.check(request)) return refused;
  if (is_program(request)) {
    if (only_reads(request) || request.method == "POST") return std::nullopt;
    return answer_error(405, "use GET, HEAD or POST");
  }
  if (!only_reads(request)) return answer_error(405, "use GET or HEAD");
  if (auto file = page_.find(request)) return for_client(request, std::move(*file));
  return answer_error(404, "there is no such page");
}

std::optional<std::string> Front::topic_of(const Request& request) {
  const auto& path = request.target.path;
  if (path.size() < 3 || path[0] != "api" || path[1] != "v1" || path.back() != "stream") return std::nullopt;
  if (path.size() == 3) return std::string();
  if (path.size() == 5 && path[2] == "runs") return path[3];
  return std::nullopt;
}

std::string Front::key_of(const Request& request) {
  if (!only_reads(request)) return {};
  std::string key = join(request.target.path, "/");
  for (const auto& [name, value] : request.target.query) {  // with lengths: a value may hold anything
    key += fmt::format("\n{}:{}={}:{}", name.size(), name, value.size(), value);
  }
  return key + '\n' + std::string(accepts(request.header("accept-encoding"), "gzip") ? "gzip" : "") + '\n' +
         std::string(request.header("accept"));
}

Response Front::ask(const Request& request, Stores& stores) {
  if (const auto topic = topic_of(request)) {
    if (!only_reads(request)) return answer_error(405, "use GET");
    try {
      if (!topic->empty()) run_of_id(stores.runs(), *topic);
    } catch (const NotThere& error) {
      return answer_error(404, error.what());
    } catch (const std::exception& error) {
      return answer_error(503, error.what());
    }
    Response stream = answer_text(200, "text/event-stream", "");
    stream.cache = "no-store";
    stream.headers.emplace_back("X-Accel-Buffering", "no");  // nginx would hold ticks back
    return stream;
  }
  Response response = api_.answer(request, stores);
  if (response.status != 200) return response;
  response.etag = etag_of(*response.body);
  if (response.body->size() < kWorthPacking || !accepts(request.header("accept-encoding"), "gzip")) return response;
  if (auto packed = gzipped(*response.body, 4)) {
    response.body = std::make_shared<const std::string>(std::move(*packed));
    response.encoding = "gzip";
    response.etag.insert(response.etag.size() - 1, "-gz");
  }
  return response;
}

std::string head_of(const Response& response, int version, bool keep_alive, std::optional<std::size_t> length) {
  std::string head = fmt::format("HTTP/1.{} {} {}\r\nServer: lockstep\r\nDate: {}\r\n", version == 10 ? 0 : 1,
                                 response.status, reason_of(response.status), http_date());
  head += kSafety;
  if (response.status != 304) head += "Content-Type: " + response.content_type + "\r\n";
  head += "Cache-Control: " + response.cache + "\r\n";
  if (!response.etag.empty()) head += "ETag: " + response.etag + "\r\n";
  if (!response.encoding.empty()) head += "Content-Encoding: " + response.encoding + "\r\n";
  head += "Vary: Accept-Encoding, Cookie, Authorization\r\n";
  for (const auto& [name, value] : response.headers) head.append(name).append(": ").append(value).append("\r\n");
  if (!length) {
    head += "Transfer-Encoding: chunked\r\n";
  } else if (response.status != 304) {
    head += fmt::format("Content-Length: {}\r\n", *length);
  }
  return head + (keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n");
}

}  // namespace lockstep::serve
