// The little of Unicode that tokenizers need: UTF-8, character classes, normal forms, lower case.
//
// Normal forms and categories come from utf8proc (Unicode 15). Where the `tokenizers` package uses older or newer
// tables, its choice is reproduced: ids must agree. Built without utf8proc, everything past UTF-8 throws
// environment_error.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/enum_names.h"

namespace lockstep::data {

// Each invalid sequence (maximal subpart, as in Python's errors="replace") becomes U+FFFD.
std::u32string decode_utf8(std::string_view bytes);
void append_utf8(std::string& out, char32_t c);
std::string encode_utf8(std::u32string_view text);

// The White_Space property; stable since Unicode 6.3.
bool is_white_space(char32_t c);

// Throws environment_error when this build has no Unicode tables.
void require_unicode();

bool is_letter(char32_t c);  // \p{L}
bool is_number(char32_t c);  // \p{N}
bool is_word(char32_t c);    // \w

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
constexpr auto names_of(NormalForm) { return enum_names<NormalForm::kNfkd>("NFC", "NFD", "NFKC", "NFKD"); }
std::u32string normalize(std::u32string_view text, NormalForm form);

// Character by character, so without the rule of the final sigma; U+0130 becomes two characters.
std::u32string to_lower(std::u32string_view text);

// BERT's classes, by the tables of the `tokenizers` package (about Unicode 8).
bool is_bert_control(char32_t c);
bool is_bert_punctuation(char32_t c);
bool is_bert_accent(char32_t c);  // Mn
bool is_bert_cjk(char32_t c);

}  // namespace lockstep::data
