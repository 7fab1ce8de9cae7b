// Random damage to text files, for tests that want every reader to answer with a value or a UserError. Deterministic
// for a seed.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace lockstep::testing {

using Random = std::mt19937_64;

template <class T>
const T& any_of(const std::vector<T>& values, Random& random) {
  return values[random() % values.size()];
}

// Pieces that matter to a YAML or JSON parser or to our own readers.
inline const std::vector<std::string>& spices() {
  static const std::vector<std::string> pieces = {":",
                                                  " ",
                                                  "\n",
                                                  "- ",
                                                  "[",
                                                  "]",
                                                  "{",
                                                  "}",
                                                  "&a ",
                                                  "*a",
                                                  "!!x ",
                                                  "'",
                                                  "\"",
                                                  "|\n",
                                                  ">\n",
                                                  "#",
                                                  "? ",
                                                  "---\n",
                                                  "%T\n",
                                                  "\t",
                                                  "\\",
                                                  "e9",
                                                  "-1",
                                                  "1e999",
                                                  "0",
                                                  "nan",
                                                  "~",
                                                  "<<: ",
                                                  "\xff",
                                                  std::string("\0x", 2),
                                                  ",",
                                                  "x",
                                                  "T",
                                                  "99999999999999999999",
                                                  "\xef\xbb\xbf",
                                                  "\r",
                                                  "preset: ",
                                                  "groups: ",
                                                  "@",
                                                  "`",
                                                  "null",
                                                  "true"};
  return pieces;
}

// Values that a number may be replaced by: the ends of every range, and what is no number at all.
inline const std::vector<std::string>& odd_values() {
  static const std::vector<std::string> values = {"0",
                                                  "1",
                                                  "-1",
                                                  "2",
                                                  "3",
                                                  "7",
                                                  "65535",
                                                  "4194304",
                                                  "1e6",
                                                  "9223372036854775807",
                                                  "9223372036854775808",
                                                  "-9223372036854775808",
                                                  "1e18",
                                                  "1e308",
                                                  "1e309",
                                                  "-1e308",
                                                  "1e-320",
                                                  "0.5",
                                                  "nan",
                                                  ".nan",
                                                  "inf",
                                                  "-inf",
                                                  "0x10",
                                                  "1_000",
                                                  "''",
                                                  "null",
                                                  "true",
                                                  "[]",
                                                  "{}",
                                                  "10B",
                                                  "1e30GB/s",
                                                  "0GiB",
                                                  "1e9GB",
                                                  "1us",
                                                  "1e20TFLOPS",
                                                  "0.0",
                                                  "-0",
                                                  "1T"};
  return values;
}

// Numbers that are one, of every size.
inline const std::vector<std::string>& sizes() {
  static const std::vector<std::string> values = {"0",       "1",     "2",     "3",    "5",    "8",    "12",
                                                  "64",      "96",    "100",   "513",  "1000", "4096", "65536",
                                                  "1000000", "0.001", "1e-12", "1e15", "1e21"};
  return values;
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines(1);
  for (const char c : text) {
    if (c == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += c;
    }
  }
  return lines;
}

inline std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) text += (i > 0 ? "\n" : "") + lines[i];
  return text;
}

// Bytes that read as a number with its unit, as positions [first, last).
inline std::vector<std::pair<std::size_t, std::size_t>> numbers_in(const std::string& text) {
  std::vector<std::pair<std::size_t, std::size_t>> found;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto continues = [&](char c) {
    return is_digit(c) || c == '.' || c == '/' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  for (std::size_t i = 0; i < text.size();) {
    const bool starts = is_digit(text[i]) && (i == 0 || !continues(text[i - 1]));
    std::size_t last = i + 1;
    if (starts) {
      while (last < text.size() && continues(text[last])) ++last;
      found.emplace_back(i, last);
    }
    i = last;
  }
  return found;
}

inline void damage_bytes(std::string& text, Random& random) {
  if (text.empty()) return;
  const std::size_t at = random() % text.size();
  const std::size_t length = 1 + random() % std::min<std::size_t>(12, text.size() - at);
  switch (random() % 6) {
    case 0:
      text[at] = static_cast<char>(random());
      break;
    case 1:
      text.erase(at, length);
      break;
    case 2:
      text.insert(at, any_of(spices(), random));
      break;
    case 3:
      text.insert(random() % text.size(), text.substr(at, length));
      break;
    case 4:
      text.resize(at);
      break;
    case 5:
      text.replace(at, length, any_of(spices(), random));
      break;
  }
}

inline void damage_lines(std::string& text, Random& random) {
  std::vector<std::string> lines = lines_of(text);
  const std::size_t at = random() % lines.size(), other = random() % lines.size();
  switch (random() % 3) {
    case 0:
      lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 1:
      std::swap(lines[at], lines[other]);
      break;
    case 2:
      lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(at), lines[other]);
      break;
  }
  text = joined(lines);
}

// The damage that most often leaves a file valid: one number becomes another of the file, or an odd one, or keeps its
// unit and changes its size.
inline void damage_number(std::string& text, Random& random) {
  const auto numbers = numbers_in(text);
  if (numbers.empty()) return;
  const auto [first, last] = any_of(numbers, random);
  const auto [other_first, other_last] = any_of(numbers, random);
  const std::string unit =
      text.substr(first, last - first).substr(std::min(text.find_first_not_of("0123456789.", first), last) - first);
  std::string value;
  switch (random() % 4) {
    case 0:
      value = any_of(odd_values(), random);
      break;
    case 1:
      value = text.substr(other_first, other_last - other_first);
      break;
    default:
      value = any_of(sizes(), random) + unit;
  }
  text.replace(first, last - first, value);
}

inline void nest_deeply(std::string& text, Random& random) {
  const std::size_t depth = 1 + random() % 3000;
  const char open = random() % 2 == 0 ? '[' : '{';
  text.insert(text.empty() ? 0 : random() % text.size(), std::string(depth, open));
}

// One to three edits of any kind.
inline std::string mutate(std::string text, Random& random) {
  const int edits = 1 + static_cast<int>(random() % 3);
  for (int i = 0; i < edits; ++i) {
    const std::uint64_t kind = random() % 100;
    if (kind < 35) {
      damage_bytes(text, random);
    } else if (kind < 85) {
      damage_number(text, random);
    } else if (kind < 99) {
      damage_lines(text, random);
    } else {
      nest_deeply(text, random);
    }
  }
  return text;
}

}  // namespace lockstep::testing
