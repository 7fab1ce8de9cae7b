#include "lockstep/data/charsmap.h"

#include <cstring>

#include "lockstep/base/base64.h"
#include "lockstep/base/error.h"
#include "lockstep/data/unicode.h"

namespace lockstep::data {
namespace {

UserError malformed(const std::string& place) {
  return bad_input("`precompiled_charsmap` is no table of SentencePiece", "take the file from the model's folder again",
                   {place});
}

// A unit of the trie, as darts-clone packs it.
bool has_leaf(std::uint32_t unit) { return ((unit >> 8) & 1) == 1; }
std::uint32_t value_of(std::uint32_t unit) { return unit & ((std::uint32_t{1} << 31) - 1); }
std::uint32_t label_of(std::uint32_t unit) { return unit & ((std::uint32_t{1} << 31) | 0xFF); }
std::uint32_t offset_of(std::uint32_t unit) { return (unit >> 10) << ((unit & (std::uint32_t{1} << 9)) >> 6); }

}  // namespace

Charsmap::Charsmap(std::string_view bytes, const std::string& place) {
  std::uint32_t size = 0;
  if (bytes.size() < sizeof size) throw malformed(place);
  std::memcpy(&size, bytes.data(), sizeof size);
  bytes.remove_prefix(sizeof size);
  if (size > bytes.size() || size % sizeof(std::uint32_t) != 0 || size == 0) throw malformed(place);
  units_.resize(size / sizeof(std::uint32_t));
  std::memcpy(units_.data(), bytes.data(), size);
  replacements_ = bytes.substr(size);
  std::string storage;
  if (sound_utf8(replacements_, storage).data() != replacements_.data()) throw malformed(place);
}

std::optional<std::string_view> Charsmap::replacement(std::string_view text) const {
  std::uint64_t node = offset_of(units_[0]);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) break;
    node ^= byte;
    if (node >= units_.size() || label_of(units_[node]) != byte) return std::nullopt;
    const std::uint32_t unit = units_[node];
    node ^= offset_of(unit);
    if (!has_leaf(unit)) continue;
    if (node >= units_.size() || value_of(units_[node]) >= replacements_.size()) return std::nullopt;
    const std::string_view rest = std::string_view(replacements_).substr(value_of(units_[node]));
    return rest.substr(0, rest.find('\0'));
  }
  return std::nullopt;
}

std::string Charsmap::normalize(std::string_view text) const {
  constexpr std::size_t kLongGrapheme = 6;
  std::string out;
  out.reserve(text.size());
  const auto replaced = [&](std::string_view part) {
    const auto found = replacement(part);
    if (found) out += *found;
    return found.has_value();
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = grapheme_end(text, at);
    const std::string_view grapheme = text.substr(at, end - at);
    at = end;
    if (grapheme.size() < kLongGrapheme && replaced(grapheme)) continue;
    for (std::size_t i = 0, next = 0; i < grapheme.size(); i = next) {
      character_at(grapheme, i, next);
      const std::string_view character = grapheme.substr(i, next - i);
      if (!replaced(character)) out += character;
    }
  }
  return out;
}

std::shared_ptr<const Charsmap> read_charsmap(const std::string& base64, const std::string& place) {
  const auto bytes = base64_decode(base64);
  if (!bytes) throw malformed(place);
  return std::make_shared<Charsmap>(*bytes, place);
}

}  // namespace lockstep::data
