// Chosen by CMake where utf8proc is not installed: the bytes tokenizer works, those from files say what is missing.
#include "lockstep/base/error.h"
#include "lockstep/data/unicode.h"

namespace lockstep::data {

void require_unicode() {
  throw environment_error("this build of lockstep has no Unicode tables, so tokenizer files cannot be used",
                          "install libutf8proc-dev and build again, or use tokenizer: bytes");
}

bool is_letter(char32_t) { return require_unicode(), false; }
bool is_number(char32_t) { return require_unicode(), false; }
bool is_word(char32_t) { return require_unicode(), false; }
std::string normalize(std::string_view, NormalForm) { return require_unicode(), std::string(); }
std::string to_lower_case(std::string_view) { return require_unicode(), std::string(); }
const CharacterClasses& CharacterClasses::instance() {
  require_unicode();
  static const CharacterClasses classes;
  return classes;
}
CharacterClasses::CharacterClasses() = default;
std::uint8_t CharacterClasses::compute(char32_t) { return require_unicode(), std::uint8_t{0}; }
bool is_combining_mark(char32_t) { return require_unicode(), false; }
std::size_t grapheme_end(std::string_view, std::size_t) { return require_unicode(), std::size_t{0}; }
bool is_bert_control(char32_t) { return require_unicode(), false; }
bool is_bert_punctuation(char32_t) { return require_unicode(), false; }
bool is_bert_accent(char32_t) { return require_unicode(), false; }
bool is_bert_cjk(char32_t) { return require_unicode(), false; }

}  // namespace lockstep::data
