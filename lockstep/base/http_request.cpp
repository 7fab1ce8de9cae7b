#include "lockstep/base/http_request.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>

#include "lockstep/base/connect.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

struct Url {
  std::string authority, host, path;
  int port = 80;
};

Url parse(const std::string& text) {
  const auto wrong = [&](const std::string& why) {
    return bad_input(fmt::format("\"{}\" is not a URL: {}", printable(text), why), "write http://host[:port]/path");
  };
  const std::string scheme = "http://";
  if (text.rfind(scheme, 0) != 0) throw wrong("it does not begin with http://");
  if (!is_printable(text) || text.find(' ') != std::string::npos) throw wrong("it holds a space or worse");
  const std::string rest = text.substr(scheme.size());
  const std::size_t slash = rest.find_first_of("/?");
  Url url;
  url.authority = rest.substr(0, slash);
  url.path = slash == std::string::npos ? "/" : rest.substr(slash);
  if (url.path.front() == '?') url.path.insert(0, "/");
  const std::size_t bracket = url.authority.find(']');  // [fd00:ec2::254]
  const std::size_t colon = url.authority.find(':', bracket == std::string::npos ? 0 : bracket);
  url.host = url.authority.substr(0, colon);
  if (bracket != std::string::npos && url.host.front() == '[') url.host = url.host.substr(1, bracket - 1);
  if (url.host.empty()) throw wrong("it names no host");
  if (colon == std::string::npos) return url;
  const std::string port = url.authority.substr(colon + 1);
  const auto [stop, error] = std::from_chars(port.data(), port.data() + port.size(), url.port);
  if (error != std::errc() || stop != port.data() + port.size() || url.port < 1 || url.port > 65535) {
    throw wrong("its port is not 1 to 65535");
  }
  return url;
}

// The value of a header; "" where there is none.
std::string header_of(const std::string& head, const std::string& name) {
  for (const std::string& line : split(head, '\n')) {
    const std::size_t colon = line.find(':');
    if (colon != std::string::npos && to_lower(line.substr(0, colon)) == name) {
      return std::string(trim(std::string_view(line).substr(colon + 1)));
    }
  }
  return "";
}

std::string joined_chunks(const std::string& body) {
  std::string whole;
  for (std::size_t at = 0; at < body.size();) {
    const std::size_t line = body.find("\r\n", at);
    if (line == std::string::npos) break;
    const auto size = static_cast<std::size_t>(std::strtoull(body.c_str() + at, nullptr, 16));
    if (size == 0 || size > body.size()) break;
    whole += body.substr(line + 2, size);
    at = line + 2 + size + 2;
  }
  return whole;
}

// The answer is complete when its length is reached, or the other side has closed.
bool is_complete(const std::string& text) {
  const std::size_t end = text.find("\r\n\r\n");
  if (end == std::string::npos) return false;
  const std::string length = header_of(text.substr(0, end), "content-length");
  return !length.empty() && text.size() >= end + 4 + std::strtoull(length.c_str(), nullptr, 10);
}

std::optional<HttpAnswer> parse_answer(const std::string& text) {
  if (text.rfind("HTTP/1.", 0) != 0 || text.size() < 12) return std::nullopt;
  HttpAnswer answer;
  answer.status = std::atoi(text.c_str() + 9);
  const std::size_t end = text.find("\r\n\r\n");
  if (answer.status < 100 || end == std::string::npos) return std::nullopt;
  answer.body = text.substr(end + 4);
  if (to_lower(header_of(text.substr(0, end), "transfer-encoding")) == "chunked") {
    answer.body = joined_chunks(answer.body);
  }
  return answer;
}

}  // namespace

void require_http_url(const std::string& url) { parse(url); }

HttpExchange::HttpExchange(const HttpRequest& request)
    : deadline_(Deadline::after(request.timeout_seconds)), most_bytes_(request.most_bytes) {
  const Url url = parse(request.url);
  out_ = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n", request.method,
                     url.path, url.authority, request.body.size());
  for (const auto& [name, value] : request.headers) out_ += fmt::format("{}: {}\r\n", name, value);
  out_ += "\r\n" + request.body;
  fd_ = begin_to_connect(url.host, url.port);
  over_ = !fd_;
}

bool HttpExchange::advance() {
  while (!over_ && (sent_ < out_.size() ? send_more() : receive_more())) {
  }
  if (deadline_.expired()) over_ = true;
  return over_;
}

// Each returns whether it got further.
bool HttpExchange::send_more() {
  pollfd polled{fd_.get(), POLLOUT, 0};
  if (::poll(&polled, 1, 0) <= 0) return false;  // not connected yet, or no room
  const ssize_t sent = ::send(fd_.get(), out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL);
  if (sent < 0 && errno != EAGAIN && errno != EINTR) over_ = true;
  if (sent > 0) sent_ += static_cast<std::size_t>(sent);
  return sent > 0;
}

bool HttpExchange::receive_more() {
  char buffer[65536];
  const ssize_t got = ::recv(fd_.get(), buffer, sizeof(buffer), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got > 0) in_.append(buffer, static_cast<std::size_t>(got));
  complete_ = got <= 0 || in_.size() >= most_bytes_ || is_complete(in_);
  over_ = complete_;
  return !over_;
}

void HttpExchange::wait(int milliseconds) const {
  if (over_) return;
  pollfd polled{fd_.get(), static_cast<short>(sent_ < out_.size() ? POLLOUT : POLLIN), 0};
  ::poll(&polled, 1, deadline_.remaining_milliseconds(milliseconds));
}

std::optional<HttpAnswer> HttpExchange::answer() const { return complete_ ? parse_answer(in_) : std::nullopt; }

std::optional<HttpAnswer> ask_http(const HttpRequest& request) {
  HttpExchange exchange(request);
  while (!exchange.advance()) exchange.wait(1000);
  return exchange.answer();
}

}  // namespace lockstep
