#include "lockstep/report/canvas/lettering.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace lockstep::report {
namespace {

// Advance widths in thousandths of the size, of the codes 32 to 255 of WinAnsi (the published metrics of the standard
// fonts; the oblique face is as wide as the upright one).
// clang-format off
constexpr std::array<std::uint16_t, 224> kHelvetica{278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278,
    333, 278, 278, 556, 556, 556, 556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667,
    722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667,
    611, 278, 278, 278, 469, 556, 333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556, 556,
    556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584, 350, 556, 350, 222, 556, 333, 1000, 556,
    556, 333, 1000, 667, 333, 1000, 350, 611, 350, 350, 222, 222, 333, 333, 350, 556, 1000, 333, 1000, 500, 333, 944,
    350, 500, 667, 278, 333, 556, 556, 556, 556, 260, 556, 333, 737, 370, 556, 584, 333, 737, 333, 400, 584, 333, 333,
    333, 556, 537, 278, 333, 333, 365, 556, 834, 834, 834, 611, 667, 667, 667, 667, 667, 667, 1000, 722, 667, 667,
    667, 667, 278, 278, 278, 278, 722, 722, 778, 778, 778, 778, 778, 584, 778, 722, 722, 722, 722, 667, 667, 611, 556,
    556, 556, 556, 556, 556, 889, 500, 556, 556, 556, 556, 278, 278, 278, 278, 556, 556, 556, 556, 556, 556, 556, 584,
    611, 556, 556, 556, 556, 500, 556, 500};
constexpr std::array<std::uint16_t, 224> kHelveticaBold{278, 333, 474, 556, 556, 889, 722, 238, 333, 333, 389, 584,
    278, 333, 278, 278, 556, 556, 556, 556, 556, 556, 556, 556, 556, 556, 333, 333, 584, 584, 584, 611, 975, 722, 722,
    722, 722, 667, 611, 778, 722, 278, 556, 722, 611, 833, 722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667,
    611, 333, 278, 333, 584, 556, 333, 556, 611, 556, 611, 556, 333, 611, 611, 278, 278, 556, 278, 889, 611, 611, 611,
    611, 389, 556, 333, 611, 556, 778, 556, 556, 500, 389, 280, 389, 584, 350, 556, 350, 278, 556, 500, 1000, 556,
    556, 333, 1000, 667, 333, 1000, 350, 611, 350, 350, 278, 278, 500, 500, 350, 556, 1000, 333, 1000, 556, 333, 944,
    350, 500, 667, 278, 333, 556, 556, 556, 556, 280, 556, 333, 737, 370, 556, 584, 333, 737, 333, 400, 584, 333, 333,
    333, 611, 556, 278, 333, 333, 365, 556, 834, 834, 834, 611, 722, 722, 722, 722, 722, 722, 1000, 722, 667, 667,
    667, 667, 278, 278, 278, 278, 722, 722, 778, 778, 778, 778, 778, 584, 778, 722, 722, 722, 722, 667, 667, 611, 556,
    556, 556, 556, 556, 556, 889, 556, 556, 556, 556, 556, 278, 278, 278, 278, 611, 611, 611, 611, 611, 611, 611, 584,
    611, 611, 611, 611, 611, 556, 611, 556};
// clang-format on
constexpr int kCourier = 600;

struct Spelling {
  std::uint32_t code;
  const char* bytes;  // in WinAnsi
};

// Windows-1252 between 0x80 and 0x9f, and signs that have a plain spelling.
constexpr std::array kSpellings{
    Spelling{0x20ac, "\x80"}, Spelling{0x201a, "\x82"}, Spelling{0x0192, "\x83"}, Spelling{0x201e, "\x84"},
    Spelling{0x2026, "\x85"}, Spelling{0x2020, "\x86"}, Spelling{0x2021, "\x87"}, Spelling{0x02c6, "\x88"},
    Spelling{0x2030, "\x89"}, Spelling{0x0160, "\x8a"}, Spelling{0x2039, "\x8b"}, Spelling{0x0152, "\x8c"},
    Spelling{0x017d, "\x8e"}, Spelling{0x2018, "\x91"}, Spelling{0x2019, "\x92"}, Spelling{0x201c, "\x93"},
    Spelling{0x201d, "\x94"}, Spelling{0x2022, "\x95"}, Spelling{0x2013, "\x96"}, Spelling{0x2014, "\x97"},
    Spelling{0x02dc, "\x98"}, Spelling{0x2122, "\x99"}, Spelling{0x0161, "\x9a"}, Spelling{0x203a, "\x9b"},
    Spelling{0x0153, "\x9c"}, Spelling{0x017e, "\x9e"}, Spelling{0x0178, "\x9f"}, Spelling{0x2192, "->"},
    Spelling{0x2190, "<-"},   Spelling{0x2265, ">="},   Spelling{0x2264, "<="},   Spelling{0x2260, "!="},
    Spelling{0x2248, "~"},    Spelling{0x2212, "-"},    Spelling{0x2011, "-"},    Spelling{0x2010, "-"},
    Spelling{0x202f, " "},    Spelling{0x2009, " "},    Spelling{0x03bc, "\xb5"}};

// The code point at `i`, which is moved past it; 0xfffd for bytes that are not UTF-8.
std::uint32_t next_code_point(std::string_view text, std::size_t& i) {
  const auto first = static_cast<unsigned char>(text[i++]);
  if (first < 0x80) return first;
  const int extra = first >= 0xf0 && first < 0xf5   ? 3
                    : first >= 0xe0 && first < 0xf0 ? 2
                    : first >= 0xc2 && first < 0xe0 ? 1
                                                    : 0;
  if (extra == 0 || i + extra > text.size()) return 0xfffd;
  std::uint32_t code = first & (0x3fu >> extra);
  for (int k = 0; k < extra; ++k) {
    const auto byte = static_cast<unsigned char>(text[i + k]);
    if ((byte & 0xc0u) != 0x80u) return 0xfffd;
    code = code << 6 | (byte & 0x3fu);
  }
  i += extra;
  return code;
}

void append_win_ansi(std::string& out, std::uint32_t code) {
  if (code < 0x20 || code == 0x7f) {
    out += ' ';
  } else if (code < 0x7f || (code >= 0xa0 && code <= 0xff)) {
    out += static_cast<char>(code);
  } else {
    const auto* found =
        std::find_if(kSpellings.begin(), kSpellings.end(), [&](const Spelling& entry) { return entry.code == code; });
    out += found != kSpellings.end() ? found->bytes : "?";
  }
}

double encoded_width(std::string_view encoded, Typeface face, double size) {
  if (face == Typeface::kMono) return static_cast<double>(encoded.size()) * kCourier * size / 1000;
  const auto& widths = face == Typeface::kBold ? kHelveticaBold : kHelvetica;
  double sum = 0;
  for (const char c : encoded) {
    const auto code = static_cast<unsigned char>(c);
    sum += code >= 32 ? widths[code - 32] : 0;
  }
  return sum * size / 1000;
}

// The longest beginning of `text` that is at most `width` wide, at least one character.
std::string_view beginning(std::string_view text, Typeface face, double size, double width) {
  std::size_t end = 0;
  double used = 0;
  while (end < text.size()) {
    std::size_t next = end;
    std::string encoded;
    append_win_ansi(encoded, next_code_point(text, next));
    used += encoded_width(encoded, face, size);
    if (used > width && end > 0) break;
    end = next;
  }
  return text.substr(0, end);
}

}  // namespace

std::string to_win_ansi(std::string_view utf8) {
  std::string out;
  for (std::size_t i = 0; i < utf8.size();) append_win_ansi(out, next_code_point(utf8, i));
  return out;
}

std::string short_number(double value, int decimals) {
  if (!std::isfinite(value)) return "0";
  std::string text = fmt::format("{:.{}f}", value, decimals);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

double text_width(std::string_view utf8, Typeface face, double size) {
  return encoded_width(to_win_ansi(utf8), face, size);
}

std::string fitted(std::string_view utf8, Typeface face, double size, double width) {
  if (text_width(utf8, face, size) <= width) return std::string(utf8);
  const double dots = text_width("...", face, size);
  return std::string(beginning(utf8, face, size, width - dots)) + "...";
}

std::vector<std::string> broken(std::string_view utf8, Typeface face, double size, double width) {
  std::vector<std::string> lines{""};
  const double space = text_width(" ", face, size);
  double used = 0;
  while (!utf8.empty()) {
    const std::size_t end = std::min(utf8.find(' '), utf8.size());
    std::string_view word = utf8.substr(0, end);
    utf8.remove_prefix(std::min(end + 1, utf8.size()));
    if (word.empty()) continue;
    if (!lines.back().empty() && used + space + text_width(word, face, size) > width) {
      lines.emplace_back();
      used = 0;
    }
    while (text_width(word, face, size) > width) {
      const std::string_view head = beginning(word, face, size, width);
      if (head.size() == word.size()) break;
      lines.back() = head;
      word.remove_prefix(head.size());
      lines.emplace_back();
    }
    if (!lines.back().empty()) {
      lines.back() += ' ';
      used += space;
    }
    lines.back() += word;
    used += text_width(word, face, size);
  }
  return lines;
}

}  // namespace lockstep::report
