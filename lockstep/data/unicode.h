// The little of Unicode that tokenizers need: UTF-8, character classes, normal forms, lower case.
//
// Normal forms and categories come from utf8proc (Unicode 15). Where the `tokenizers` package uses older or newer
// tables, its choice is reproduced: ids must agree. Built without utf8proc, everything past UTF-8 throws
// environment_error.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/enum_names.h"

namespace lockstep::data {

// Texts below are valid UTF-8 (sound_utf8()) unless a function says otherwise.

// Each invalid sequence (maximal subpart, as in Python's errors="replace") becomes U+FFFD.
std::u32string decode_utf8(std::string_view bytes);
void append_utf8(std::string& out, char32_t c);
std::string encode_utf8(std::u32string_view text);

// `bytes` itself where it is valid UTF-8, else what decode_utf8() makes of it, put into `storage`.
std::string_view sound_utf8(std::string_view bytes, std::string& storage);

// The first byte from `at` on that is not ASCII; text.size() when there is none.
std::size_t skip_ascii(std::string_view text, std::size_t at);

// The character of valid UTF-8 that begins at `at`; `next` becomes the place of the one after it.
inline char32_t character_at(std::string_view text, std::size_t at, std::size_t& next) {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) {
    next = at + 1;
    return lead;
  }
  if (lead < 0xE0) {
    next = at + 2;
    return ((lead & 0x1F) << 6) | (byte(1) & 0x3F);
  }
  if (lead < 0xF0) {
    next = at + 3;
    return ((lead & 0x0F) << 12) | ((byte(1) & 0x3F) << 6) | (byte(2) & 0x3F);
  }
  next = at + 4;
  return ((lead & 0x07) << 18) | ((byte(1) & 0x3F) << 12) | ((byte(2) & 0x3F) << 6) | (byte(3) & 0x3F);
}

// The White_Space property; stable since Unicode 6.3.
bool is_white_space(char32_t c);

// Throws environment_error when this build has no Unicode tables.
void require_unicode();

bool is_letter(char32_t c);  // \p{L}
bool is_number(char32_t c);  // \p{N}
bool is_word(char32_t c);    // \w

// What split patterns distinguish. Every character is of exactly one class, so that a set of classes is a mask.
enum CharacterClass : std::uint8_t { kLetter = 1, kNumber = 2, kWhiteSpace = 4, kOther = 8 };

// The classes of the characters below 0x20000 in one table, which holds nearly every text.
class CharacterClasses {
 public:
  static const CharacterClasses& instance();
  std::uint8_t of(char32_t c) const { return c < table_.size() ? table_[c] : compute(c); }

 private:
  CharacterClasses();
  static std::uint8_t compute(char32_t c);
  std::vector<std::uint8_t> table_;
};

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
constexpr auto names_of(NormalForm) { return enum_names<NormalForm::kNfkd>("NFC", "NFD", "NFKC", "NFKD"); }
std::string normalize(std::string_view text, NormalForm form);

// Character by character, so without the rule of the final sigma; U+0130 becomes two characters.
std::string to_lower_case(std::string_view text);

bool is_combining_mark(char32_t c);  // \p{M}
// The end of the grapheme cluster that begins at `at`: what a reader takes for one character.
std::size_t grapheme_end(std::string_view text, std::size_t at);

// BERT's classes, by the tables of the `tokenizers` package (about Unicode 8).
bool is_bert_control(char32_t c);
bool is_bert_punctuation(char32_t c);
bool is_bert_accent(char32_t c);  // Mn
bool is_bert_cjk(char32_t c);

}  // namespace lockstep::data
