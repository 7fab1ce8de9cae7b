// Added tokens: words such as <|endoftext|> or [MASK] that are found in the text before anything else happens to it.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/tokenizer.h"

namespace lockstep::data {

struct AddedToken {
  std::string content;
  TokenId id = 0;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and after it
  bool normalized = false;   // looked for in the normalised text instead of the raw one
  bool special = false;
};

// Immutable; finds the leftmost, then longest token each time.
class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;
  // Tokens with empty content are never found.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  // A piece of the text, or the token found there (id >= 0); pieces are not empty.
  struct Part {
    TokenId id;
    std::string_view text;
  };
  // `text` is valid UTF-8; the parts point into it.
  std::vector<Part> split(std::string_view text) const;

 private:
  const AddedToken* longest_at(std::string_view rest) const;

  std::vector<AddedToken> tokens_;                 // longest first within one first byte
  std::vector<std::vector<std::size_t>> by_byte_;  // first byte -> places in tokens_
  std::array<bool, 256> begins_token_{};           // whether there are any
};

}  // namespace lockstep::data
