#include "lockstep/diagnose/foreign/json_scan.h"

#include <charconv>
#include <cmath>
#include <cstring>

namespace lockstep::diagnose {
namespace {

constexpr int kDeepest = 200;  // of brackets in one value

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

void append_utf8(std::string& text, unsigned code) {
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xc0 | (code >> 6));
    text += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    text += static_cast<char>(0xe0 | (code >> 12));
    text += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    text += static_cast<char>(0x80 | (code & 0x3f));
  }
}

}  // namespace

void JsonScan::expect(char wanted) {
  if (peek() != wanted) {
    switch (wanted) {
      case '{':
        throw JsonDamaged{at_, "an object was expected"};
      case '[':
        throw JsonDamaged{at_, "an array was expected"};
      case ':':
        throw JsonDamaged{at_, "a colon was expected"};
      default:
        throw JsonDamaged{at_, "a comma or a closing bracket was expected"};
    }
  }
  ++at_;
}

bool JsonScan::take_if(char wanted) {
  if (peek() != wanted) return false;
  ++at_;
  return true;
}

std::string_view JsonScan::string() {
  const char* const begin = at_ + 1;
  const char* from = begin;
  while (true) {
    const char* quote = static_cast<const char*>(std::memchr(from, '"', static_cast<std::size_t>(end_ - from)));
    if (quote == nullptr) throw JsonIncomplete{};
    const char* slash = quote;
    while (slash > begin && slash[-1] == '\\') --slash;
    if ((quote - slash) % 2 == 0) {
      at_ = quote + 1;
      return {begin, static_cast<std::size_t>(quote - begin)};
    }
    from = quote + 1;
  }
}

void JsonScan::skip_nested() {
  char open[kDeepest];
  int depth = 0;
  while (at_ < end_) {
    const char c = *at_;
    if (c == '"') {
      string();
      continue;
    }
    if (c == '{' || c == '[') {
      if (depth == kDeepest) throw JsonDamaged{at_, "brackets are nested too deeply"};
      open[depth++] = c;
    } else if (c == '}' || c == ']') {
      if (open[--depth] != (c == '}' ? '{' : '[')) throw JsonDamaged{at_, "brackets do not match"};
      if (depth == 0) {
        ++at_;
        return;
      }
    } else if (static_cast<unsigned char>(c) < ' ' && !is_space(c)) {
      throw JsonDamaged{at_, "a control character"};
    }
    ++at_;
  }
  throw JsonIncomplete{};
}

std::string_view JsonScan::value() {
  const char first = peek();
  const char* const begin = at_;
  if (first == '"') {
    string();
  } else if (first == '{' || first == '[') {
    skip_nested();
  } else {
    while (at_ < end_ && *at_ != ',' && *at_ != '}' && *at_ != ']' && !is_space(*at_)) {
      const char c = *at_;
      const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
                         c == '+' || c == '.';
      if (!plain) throw JsonDamaged{at_, "a value was expected"};
      ++at_;
    }
    if (at_ == end_) throw JsonIncomplete{};
    if (at_ == begin) throw JsonDamaged{at_, "a value was expected"};
  }
  return {begin, static_cast<std::size_t>(at_ - begin)};
}

bool JsonScan::finished() {
  skip_space();
  return at_ == end_;
}

std::string_view json_inside(std::string_view value) {
  if (value.size() >= 2 && value.front() == '"' && value.back() == '"') return value.substr(1, value.size() - 2);
  return value;
}

std::optional<std::int64_t> json_integer(std::string_view value) {
  value = json_inside(value);
  std::int64_t number = 0;
  const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || stop == value.data()) return std::nullopt;
  if (stop == value.data() + value.size()) return number;
  const auto real = json_real(value);
  if (!real || std::abs(*real) > 9e18) return std::nullopt;
  return static_cast<std::int64_t>(*real);
}

std::optional<double> json_real(std::string_view value) {
  value = json_inside(value);
  double number = 0.0;
  const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || stop != value.data() + value.size() || !std::isfinite(number)) return std::nullopt;
  return number;
}

std::optional<std::int64_t> json_microseconds(std::string_view value) {
  value = json_inside(value);
  // Since 1970 until 2096; the nanoseconds between any two of them fit, too.
  constexpr std::int64_t kMost = 4'000'000'000'000'000;
  std::int64_t whole = 0;
  const char* const end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, whole);
  const bool readable = error == std::errc() && whole <= kMost && whole >= -kMost;
  if (readable && stop == end) return whole * 1000;
  if (readable && *stop == '.') {
    std::int64_t part = 0;
    int digits = 0;
    const char* at = stop + 1;
    for (; at < end && *at >= '0' && *at <= '9'; ++at) {
      if (digits < 3) part = part * 10 + (*at - '0'), ++digits;
    }
    if (at == end) {
      for (; digits < 3; ++digits) part *= 10;
      return whole * 1000 + (value.front() == '-' ? -part : part);
    }
  }
  const auto real = json_real(value);
  if (!real || std::abs(*real) > static_cast<double>(kMost)) return std::nullopt;
  return static_cast<std::int64_t>(*real * 1000.0);
}

std::string json_text(std::string_view text) {
  text = json_inside(text);
  std::string plain;
  plain.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      plain += text[i];
      continue;
    }
    const char c = text[++i];
    if (c == 'u' && i + 4 < text.size()) {
      unsigned code = 0;
      const auto [stop, error] = std::from_chars(text.data() + i + 1, text.data() + i + 5, code, 16);
      if (error == std::errc() && stop == text.data() + i + 5) append_utf8(plain, code);
      i += 4;
    } else {
      plain += c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
    }
  }
  return plain;
}

}  // namespace lockstep::diagnose
