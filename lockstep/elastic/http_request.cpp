#include "lockstep/elastic/http_request.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/elastic/sockets.h"

namespace lockstep::elastic {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 10;

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

bool wait_until_ready(int fd, short events, const Deadline& deadline) {
  pollfd polled{fd, events, 0};
  while (!deadline.expired()) {
    if (::poll(&polled, 1, deadline.remaining_milliseconds()) > 0) return true;
  }
  return false;
}

bool send_all(int fd, const std::string& text, const Deadline& deadline) {
  for (std::size_t done = 0; done < text.size();) {
    if (!wait_until_ready(fd, POLLOUT, deadline)) return false;
    const ssize_t sent = ::send(fd, text.data() + done, text.size() - done, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (sent > 0) done += static_cast<std::size_t>(sent);
  }
  return true;
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

std::optional<HttpAnswer> ask_http(const HttpRequest& request) {
  const Url url = parse(request.url);
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: 0\r\n",
                                 request.method, url.path, url.authority);
  for (const auto& [name, value] : request.headers) text += fmt::format("{}: {}\r\n", name, value);
  text += "\r\n";
  const Deadline deadline = Deadline::after(request.timeout_seconds);
  const UniqueFd fd = begin_to_connect(url.host, url.port);
  if (!fd || !send_all(fd.get(), text, deadline)) return std::nullopt;
  std::string answer;
  while (answer.size() < kMostBytes && !is_complete(answer)) {
    if (!wait_until_ready(fd.get(), POLLIN, deadline)) return std::nullopt;
    char buffer[4096];
    const ssize_t got = ::recv(fd.get(), buffer, sizeof(buffer), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) break;
    answer.append(buffer, static_cast<std::size_t>(got));
  }
  return parse_answer(answer);
}

}  // namespace lockstep::elastic
