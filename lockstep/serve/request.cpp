#include "lockstep/serve/request.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::serve {
namespace {

std::optional<int> hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

// In a query '+' is a space.
std::optional<std::string> percent_decoded(std::string_view text, bool plus_is_space) {
  std::string decoded;
  decoded.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%') {
      const auto high = i + 2 < text.size() ? hex_digit(text[i + 1]) : std::nullopt;
      const auto low = high ? hex_digit(text[i + 2]) : std::nullopt;
      if (!low) return std::nullopt;
      decoded += static_cast<char>(*high * 16 + *low);
      i += 2;
    } else {
      decoded += plus_is_space && text[i] == '+' ? ' ' : text[i];
    }
  }
  if (!is_utf8(decoded)) return std::nullopt;
  return decoded;
}

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

bool is_safe_segment(std::string_view segment) {
  if (segment.empty() || segment == "." || segment == "..") return false;
  return std::none_of(segment.begin(), segment.end(), [](char c) { return c == '/' || c == '\\' || is_control(c); });
}

bool parse_path(std::string_view path, Target& target) {
  while (!path.empty()) {
    path.remove_prefix(1);  // the '/'
    const std::size_t end = std::min(path.find('/'), path.size());
    const auto segment = percent_decoded(path.substr(0, end), false);
    path.remove_prefix(end);
    if (segment && segment->empty() && path.empty()) return true;  // "/" at the end
    if (!segment || !is_safe_segment(*segment)) return false;
    target.path.push_back(*segment);
  }
  return true;
}

bool parse_query(std::string_view query, Target& target) {
  for (const std::string& pair : split(query, '&')) {
    if (pair.empty()) continue;
    const std::size_t equals = std::min(pair.find('='), pair.size());
    const auto key = percent_decoded(std::string_view(pair).substr(0, equals), true);
    const auto value =
        percent_decoded(equals < pair.size() ? std::string_view(pair).substr(equals + 1) : std::string_view(), true);
    if (!key || !value) return false;
    target.query[*key] = *value;
  }
  return true;
}

}  // namespace

std::optional<Target> parse_target(std::string_view text) {
  if (text.empty() || text.front() != '/' || text.size() > kLongestTarget) return std::nullopt;
  text = text.substr(0, text.find('#'));
  const std::size_t question = std::min(text.find('?'), text.size());
  Target target;
  if (!parse_path(text.substr(0, question), target)) return std::nullopt;
  if (question < text.size() && !parse_query(text.substr(question + 1), target)) return std::nullopt;
  return target;
}

std::string_view Request::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

std::int64_t Request::integer(const std::string& key, std::int64_t fallback, std::int64_t least,
                              std::int64_t most) const {
  const auto found = target.query.find(key);
  if (found == target.query.end() || found->second.empty()) return fallback;
  const std::string& text = found->second;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw bad_input("`" + key + "` is '" + printable(text) + "'",
                    "give a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return value;
}

std::string Request::text(const std::string& key, const std::string& fallback) const {
  const auto found = target.query.find(key);
  return found == target.query.end() ? fallback : found->second;
}

std::string_view cookie(std::string_view header, std::string_view name) {
  while (!header.empty()) {
    const std::size_t end = std::min(header.find(';'), header.size());
    const std::string_view pair = trim(header.substr(0, end));
    header.remove_prefix(std::min(end + 1, header.size()));
    if (pair.size() > name.size() && pair.starts_with(name) && pair[name.size()] == '=') {
      return pair.substr(name.size() + 1);
    }
  }
  return {};
}

std::optional<std::string> host_of_authority(std::string_view authority) {
  std::string_view host = authority, port;
  if (authority.starts_with('[')) {
    const std::size_t close = authority.find(']');
    if (close == std::string_view::npos) return std::nullopt;
    host = authority.substr(1, close - 1);
    port = authority.substr(close + 1);
    if (!port.empty() && !port.starts_with(':')) return std::nullopt;
    port.remove_prefix(port.empty() ? 0 : 1);
  } else if (const std::size_t colon = authority.find(':'); colon != std::string_view::npos) {
    host = authority.substr(0, colon);
    port = authority.substr(colon + 1);
  }
  const auto in_name = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_' || c == ':';
  };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (host.empty() || !std::all_of(host.begin(), host.end(), in_name)) return std::nullopt;
  if (port.size() > 5 || !std::all_of(port.begin(), port.end(), is_digit)) return std::nullopt;
  return to_lower(host);
}

std::optional<std::string> authority_of_origin(std::string_view origin) {
  const std::size_t scheme = origin.find("://");
  if (scheme == std::string_view::npos) return std::nullopt;
  const std::string name = to_lower(origin.substr(0, scheme));
  std::string authority = to_lower(origin.substr(scheme + 3));
  if ((name != "http" && name != "https") || !host_of_authority(authority)) return std::nullopt;
  const std::string usual = name == "http" ? ":80" : ":443";
  if (authority.ends_with(usual)) authority.resize(authority.size() - usual.size());
  return authority;
}

bool accepts(std::string_view header, std::string_view name) {
  for (const std::string& entry : split(header, ',')) {
    const std::vector<std::string> parts = split(entry, ';');
    if (to_lower(trim(parts.front())) != name) continue;
    return std::none_of(parts.begin() + 1, parts.end(), [](const std::string& part) {
      const std::string weight = to_lower(trim(part));
      return weight.starts_with("q=0") && weight.find_first_not_of("0.", 2) == std::string::npos;
    });
  }
  return false;
}

LivePlace parse_place(std::string_view id) {
  LivePlace place;
  const char* end = id.data() + id.size();
  const auto [rest, error] = std::from_chars(id.data(), end, place.step);
  if (error != std::errc()) return {};
  if (rest == end) return place;
  if (*rest != '-') return {};
  const auto [last, second] = std::from_chars(rest + 1, end, place.time_ms);
  if (second != std::errc() || last != end) return {};
  return place;
}

Response answer_text(int status, std::string content_type, std::string text) {
  Response response;
  response.status = status;
  response.content_type = std::move(content_type);
  response.body = std::make_shared<const std::string>(std::move(text));
  return response;
}

Response answer_error(int status, const std::string& what) {
  Response response =
      answer_text(status, "application/json",
                  nlohmann::json{{"error", what}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  response.cache = "no-store";
  return response;
}

Response for_client(const Request& request, Response response) {
  if (response.status == 200 && !response.etag.empty() && request.header("if-none-match") == response.etag) {
    response.status = 304;
    response.body = std::make_shared<const std::string>();
    response.encoding.clear();
  }
  return response;
}

}  // namespace lockstep::serve
