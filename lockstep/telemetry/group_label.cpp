#include "lockstep/telemetry/group_label.h"

#include <fmt/format.h>

#include <charconv>

namespace lockstep::telemetry {
namespace {

constexpr std::size_t kMostRanks = 1'000'000;  // that a text may name

// How many of `ranks` from `first` on have the same distance, which is positive.
std::size_t evenly_spaced(const std::vector<int>& ranks, std::size_t first) {
  if (first + 1 >= ranks.size() || ranks[first + 1] <= ranks[first]) return 1;
  const int stride = ranks[first + 1] - ranks[first];
  std::size_t count = 2;
  while (first + count < ranks.size() && ranks[first + count] - ranks[first + count - 1] == stride) ++count;
  return count;
}

std::optional<int> take_number(std::string_view& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

bool take(std::string_view& text, char letter) {
  if (text.empty() || text.front() != letter) return false;
  text.remove_prefix(1);
  return true;
}

// "4", "0-3" or "0-24/8".
bool take_ranks(std::string_view& text, std::vector<int>& ranks) {
  const auto first = take_number(text);
  if (!first) return false;
  int last = *first, stride = 1;
  if (take(text, '-')) {
    const auto number = take_number(text);
    if (!number || *number < last) return false;
    last = *number;
    if (take(text, '/')) {
      const auto step = take_number(text);
      if (!step || *step == 0) return false;
      stride = *step;
    }
  }
  for (int rank = *first; rank <= last; rank += stride) {
    if (ranks.size() >= kMostRanks) return false;
    ranks.push_back(rank);
    if (last - rank < stride) break;
  }
  return true;
}

}  // namespace

std::string to_text(const GroupLabel& label) {
  std::string text = label.name + ":";
  for (std::size_t i = 0; i < label.ranks.size();) {
    std::size_t count = evenly_spaced(label.ranks, i);
    if (count == 2) count = 1;
    if (i > 0) text += ',';
    text += std::to_string(label.ranks[i]);
    if (count > 1) {
      const int stride = label.ranks[i + 1] - label.ranks[i];
      text += fmt::format("-{}", label.ranks[i + count - 1]);
      if (stride > 1) text += fmt::format("/{}", stride);
    }
    i += count;
  }
  return text;
}

std::optional<GroupLabel> parse_group_label(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  GroupLabel label{std::string(text.substr(0, colon)), {}};
  text.remove_prefix(colon + 1);
  do {
    if (!take_ranks(text, label.ranks)) return std::nullopt;
  } while (take(text, ','));
  if (!text.empty()) return std::nullopt;
  return label;
}

}  // namespace lockstep::telemetry
