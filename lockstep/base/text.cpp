#include "lockstep/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace lockstep {
namespace {

constexpr std::size_t kLongestCompared = 256;
constexpr int kDigitCost = 2;
constexpr std::size_t kShortestStem = 3;  // letters that say what a longer word is

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v'; }

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return c >= 'a' && c <= 'z'; }  // of lower-case text

// Damerau-Levenshtein; a digit inserted, deleted or replaced costs `digit`.
int edits(std::string_view a, std::string_view b, int digit) {
  a = a.substr(0, kLongestCompared);
  b = b.substr(0, kLongestCompared);
  const auto cost = [&](char c) { return is_digit(c) ? digit : 1; };
  // Three rows of the dynamic programme are enough: a swap looks two rows back.
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j < b.size(); ++j) last[j + 1] = last[j] + cost(b[j]);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    const char from = a[i - 1];
    row[0] = last[0] + cost(from);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const char to = b[j - 1];
      const int replace = last[j - 1] + (from == to ? 0 : std::max(cost(from), cost(to)));
      row[j] = std::min({last[j] + cost(from), row[j - 1] + cost(to), replace});
      if (i > 1 && j > 1 && from == b[j - 2] && a[i - 2] == to) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

// Runs of letters, and numbers: "llama3.2-1b" is llama, 3.2, 1, b.
std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    if (is_letter(text[i])) {
      while (end < text.size() && is_letter(text[end])) ++end;
    } else {
      while (end < text.size() && (is_digit(text[end]) || (end > i && text[end] == '.'))) ++end;
    }
    if (end > i) words.push_back(text.substr(i, end - i));
    i = std::max(end, i + 1);
  }
  return words;
}

// Several words, all found in order in the candidate's, where they may be longer; both begin with the same letter.
bool is_shortened(std::string_view name, std::string_view candidate) {
  const auto meant = [](std::string_view word, std::string_view whole) {
    return word == whole || (word.size() >= kShortestStem && is_letter(word[0]) && whole.starts_with(word));
  };
  const std::vector<std::string_view> words = words_of(name), all = words_of(candidate);
  if (words.size() < 2 || all.empty() || !meant(words[0], all[0])) return false;
  std::size_t found = 0;
  for (const std::string_view whole : all) {
    if (found < words.size() && meant(words[found], whole)) ++found;
  }
  return found == words.size();
}

// How far `candidate` is from what was written, both in lower case; nothing where it is too far to be meant.
std::optional<double> distance_to(std::string_view name, std::string_view candidate) {
  const std::size_t longer = std::max(name.size(), candidate.size()), shorter = std::min(name.size(), candidate.size());
  std::optional<double> distance = edits(name, candidate, kDigitCost);
  if (*distance > std::max(1.0, static_cast<double>(longer / 3))) distance.reset();
  const bool begins = shorter >= kShortestStem && (name.starts_with(candidate) || candidate.starts_with(name));
  if (!begins && !is_shortened(name, candidate)) return distance;
  // Worse than one typo, better than two; the less is omitted the better.
  const double left_out = 1.5 + 0.1 * static_cast<double>(longer - shorter) / static_cast<double>(longer);
  return distance ? std::min(*distance, left_out) : left_out;
}

// One character of UTF-8 at the front of `text`, which is shortened by it; nothing when the bytes are not UTF-8. The
// ranges are those of Unicode's table 3-7.
std::optional<char32_t> take_character(std::string_view& text) {
  const auto lead = static_cast<unsigned char>(text.front());
  text.remove_prefix(1);
  if (lead < 0x80) return lead;
  const int follow = lead >= 0xC2 && lead < 0xE0   ? 1
                     : lead >= 0xE0 && lead < 0xF0 ? 2
                     : lead >= 0xF0 && lead < 0xF5 ? 3
                                                   : 0;
  if (follow == 0 || text.size() < static_cast<std::size_t>(follow)) return std::nullopt;
  auto c = static_cast<char32_t>(lead & (0x3F >> follow));
  for (int i = 0; i < follow; ++i) {
    const auto byte = static_cast<unsigned char>(text.front());
    if ((byte & 0xC0) != 0x80) return std::nullopt;
    c = (c << 6) | (byte & 0x3F);
    text.remove_prefix(1);
  }
  constexpr std::array<char32_t, 4> kLeast = {0, 0x80, 0x800, 0x10000};
  if (c < kLeast[static_cast<std::size_t>(follow)] || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) return std::nullopt;
  return c;
}

// C0, C1 and DEL, line and paragraph separators, and what turns the writing direction round.
bool is_control(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x2028 || c == 0x2029 || (c >= 0x202A && c <= 0x202E) ||
         (c >= 0x2066 && c <= 0x2069);
}

bool is_harmless_in_a_shell(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) ||
         std::string_view("_@%+=:,./-").find(c) != std::string_view::npos;
}

bool is_ascii_control(char c) { return static_cast<unsigned char>(c) < 32 || c == 127; }

std::string ansi_c_quoted(std::string_view text) {
  std::string out = "$'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') {
      out.append("\\").append(1, c);
    } else if (is_ascii_control(c)) {
      out += fmt::format("\\{:03o}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "'";
}

}  // namespace

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += separator;
    text += parts[i];
  }
  return text;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::string to_lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

int edit_distance(std::string_view a, std::string_view b) { return edits(a, b, 1); }

std::optional<std::string> nearest(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string wanted = to_lower(name);
  std::optional<std::string> best;
  double best_distance = 0;
  for (const std::string& candidate : candidates) {
    const std::optional<double> distance = distance_to(wanted, to_lower(candidate));
    if (distance && (!best || *distance < best_distance)) {
      best = candidate;
      best_distance = *distance;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  if (const auto best = nearest(name, candidates)) return "did you mean `" + *best + "`?";
  return candidates.empty() ? std::string("nothing is known here") : "known: " + join(candidates, ", ");
}

std::string printable(std::string_view text, std::size_t max) {
  std::string out;
  while (!text.empty()) {
    if (out.size() >= max) return out + "...";
    std::string_view rest = text;
    const std::optional<char32_t> c = take_character(rest);
    const bool shown = c && !is_control(*c);
    const std::size_t bytes = c ? text.size() - rest.size() : 1;
    for (const char byte : text.substr(0, bytes)) {
      out += shown ? std::string(1, byte) : fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    }
    text.remove_prefix(bytes);
  }
  return out;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    if (!take_character(text)) return false;
  }
  return true;
}

bool is_printable(std::string_view text) {
  while (!text.empty()) {
    const std::optional<char32_t> c = take_character(text);
    if (!c || is_control(*c)) return false;
  }
  return true;
}

std::string shell_quoted(std::string_view text) {
  if (!text.empty() && std::all_of(text.begin(), text.end(), is_harmless_in_a_shell)) return std::string(text);
  if (std::any_of(text.begin(), text.end(), is_ascii_control)) return ansi_c_quoted(text);
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

}  // namespace lockstep
