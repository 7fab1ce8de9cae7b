#include <cstring>

#include "lockstep/data/unicode.h"

namespace lockstep::data {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

// How many bytes follow the lead byte, and the range of the first of them: Unicode's table 3-7, which rules out
// overlong forms, surrogates and what lies beyond U+10FFFF. follow < 0: no lead byte.
struct Lead {
  int follow;
  unsigned char low;
  unsigned char high;
};

Lead classify(unsigned char lead) {
  if (lead < 0xC2) return {-1, 0, 0};
  if (lead < 0xE0) return {1, 0x80, 0xBF};
  if (lead == 0xE0) return {2, 0xA0, 0xBF};
  if (lead == 0xED) return {2, 0x80, 0x9F};
  if (lead < 0xF0) return {2, 0x80, 0xBF};
  if (lead == 0xF0) return {3, 0x90, 0xBF};
  if (lead < 0xF4) return {3, 0x80, 0xBF};
  if (lead == 0xF4) return {3, 0x80, 0x8F};
  return {-1, 0, 0};
}

}  // namespace

std::u32string decode_utf8(std::string_view bytes) {
  std::u32string text;
  text.reserve(bytes.size());
  std::size_t at = 0;
  while (at < bytes.size()) {
    const auto lead = static_cast<unsigned char>(bytes[at++]);
    if (lead < 0x80) {
      text.push_back(lead);
      continue;
    }
    const Lead kind = classify(lead);
    if (kind.follow < 0) {
      text.push_back(kReplacement);
      continue;
    }
    char32_t c = lead & (0x3F >> kind.follow);
    int seen = 0;
    unsigned char low = kind.low;
    unsigned char high = kind.high;
    while (seen < kind.follow && at < bytes.size()) {
      const auto next = static_cast<unsigned char>(bytes[at]);
      if (next < low || next > high) break;
      c = (c << 6) | (next & 0x3F);
      low = 0x80;
      high = 0xBF;
      ++at;
      ++seen;
    }
    text.push_back(seen == kind.follow ? c : kReplacement);
  }
  return text;
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out.push_back(static_cast<char>(0xC0 | (c >> 6)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | (c >> 12)));
    out.push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out.push_back(static_cast<char>(0xF0 | (c >> 18)));
    out.push_back(static_cast<char>(0x80 | ((c >> 12) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

std::string encode_utf8(std::u32string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char32_t c : text) append_utf8(out, c);
  return out;
}

std::size_t skip_ascii(std::string_view text, std::size_t at) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080ULL;
  for (std::uint64_t word = 0; at + sizeof word <= text.size(); at += sizeof word) {
    std::memcpy(&word, text.data() + at, sizeof word);
    if ((word & kHighBits) != 0) break;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

namespace {

// Bytes of the sound character that begins at `at`, 0 when it is none.
std::size_t sound_character(std::string_view text, std::size_t at) {
  const Lead kind = classify(static_cast<unsigned char>(text[at]));
  const auto follow = static_cast<std::size_t>(kind.follow);
  if (kind.follow < 0 || at + follow >= text.size()) return 0;
  for (std::size_t i = 1; i <= follow; ++i) {
    const auto next = static_cast<unsigned char>(text[at + i]);
    if (next < (i == 1 ? kind.low : 0x80) || next > (i == 1 ? kind.high : 0xBF)) return 0;
  }
  return follow + 1;
}

}  // namespace

std::string_view sound_utf8(std::string_view bytes, std::string& storage) {
  for (std::size_t at = skip_ascii(bytes, 0); at < bytes.size(); at = skip_ascii(bytes, at)) {
    const std::size_t length = sound_character(bytes, at);
    if (length == 0) {
      storage = encode_utf8(decode_utf8(bytes));
      return storage;
    }
    at += length;
  }
  return bytes;
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

}  // namespace lockstep::data
