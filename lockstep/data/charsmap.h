// SentencePiece's table of characters and what they become, as a tokenizer.json carries it (`precompiled_charsmap`): a
// double-array trie (Aoe 1989, in the layout of darts-clone) whose values are places in one text of replacements that
// end in zero bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

// Immutable; safe from many threads.
class Charsmap {
 public:
  // Throws bad_input at `place` for bytes that are no such table.
  Charsmap(std::string_view bytes, const std::string& place);

  // `text` is valid UTF-8. As `tokenizers` does it: a grapheme of less than six bytes becomes what its shortest prefix
  // in the table says, what is behind the prefix vanishes; others character by character.
  std::string normalize(std::string_view text) const;

 private:
  std::optional<std::string_view> replacement(std::string_view text) const;

  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

// From base64.
std::shared_ptr<const Charsmap> read_charsmap(const std::string& base64, const std::string& place);

}  // namespace lockstep::data
