#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <new>

#include "lockstep/base/error.h"
#include "lockstep/data/unicode.h"

namespace lockstep::data {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};

template <std::size_t n>
bool contains(const Range (&ranges)[n], char32_t c) {
  const Range* after = std::upper_bound(std::begin(ranges), std::end(ranges), c,
                                        [](char32_t value, const Range& range) { return value < range.first; });
  return after != std::begin(ranges) && c <= std::prev(after)->last;
}

// Assigned in Unicode 15.1 and 16; the regular expressions of `tokenizers` know them, utf8proc 2.8 does not yet.
constexpr Range kNewLetters[] = {{0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3},
                                 {0x10D4A, 0x10D65}, {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x11380, 0x11389},
                                 {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113B7},
                                 {0x113D1, 0x113D1}, {0x113D3, 0x113D3}, {0x11BC0, 0x11BE0}, {0x13460, 0x143FA},
                                 {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF}, {0x1E5D0, 0x1E5ED},
                                 {0x1E5F0, 0x1E5F0}, {0x2EBF0, 0x2EE5D}};
constexpr Range kNewNumbers[] = {{0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9}, {0x16130, 0x16139},
                                 {0x16D70, 0x16D79}, {0x1CCF0, 0x1CCF9}, {0x1E5F1, 0x1E5FA}};

// Younger than the tables behind BERT's normaliser in `tokenizers`, which therefore leaves them alone.
constexpr Range kAccentsBertKeeps[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8E1},     {0x9FE, 0x9FE},     {0xAFA, 0xAFF},
    {0xB55, 0xB55},     {0xC04, 0xC04},     {0xC3C, 0xC3C},     {0xD00, 0xD00},     {0xD3B, 0xD3C},
    {0xD81, 0xD81},     {0xEBA, 0xEBA},     {0xECE, 0xECE},     {0x180F, 0x180F},   {0x1885, 0x1886},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFB},   {0xA82C, 0xA82C},   {0xA8C5, 0xA8C5},   {0xA8FF, 0xA8FF},
    {0xA9BD, 0xA9BD},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x11073, 0x11074}, {0x110C2, 0x110C2}, {0x111C9, 0x111C9},
    {0x111CF, 0x111CF}, {0x1123E, 0x1123E}, {0x11241, 0x11241}, {0x1133B, 0x1133B}, {0x11438, 0x1143F},
    {0x11442, 0x11444}, {0x11446, 0x11446}, {0x1145E, 0x1145E}, {0x1182F, 0x11837}, {0x11839, 0x1183A},
    {0x1193B, 0x1193C}, {0x1193E, 0x1193E}, {0x11943, 0x11943}, {0x119D4, 0x119D7}, {0x119DA, 0x119DB},
    {0x119E0, 0x119E0}, {0x11A01, 0x11A0A}, {0x11A33, 0x11A38}, {0x11A3B, 0x11A3E}, {0x11A47, 0x11A47},
    {0x11A51, 0x11A56}, {0x11A59, 0x11A5B}, {0x11A8A, 0x11A96}, {0x11A98, 0x11A99}, {0x11C30, 0x11C36},
    {0x11C38, 0x11C3D}, {0x11C3F, 0x11C3F}, {0x11C92, 0x11CA7}, {0x11CAA, 0x11CB0}, {0x11CB2, 0x11CB3},
    {0x11CB5, 0x11CB6}, {0x11D31, 0x11D36}, {0x11D3A, 0x11D3A}, {0x11D3C, 0x11D3D}, {0x11D3F, 0x11D45},
    {0x11D47, 0x11D47}, {0x11D90, 0x11D91}, {0x11D95, 0x11D95}, {0x11D97, 0x11D97}, {0x11EF3, 0x11EF4},
    {0x11F00, 0x11F01}, {0x11F36, 0x11F3A}, {0x11F40, 0x11F40}, {0x11F42, 0x11F42}, {0x13440, 0x13440},
    {0x13447, 0x13455}, {0x16F4F, 0x16F4F}, {0x16FE4, 0x16FE4}, {0x1CF00, 0x1CF2D}, {0x1CF30, 0x1CF46},
    {0x1E000, 0x1E006}, {0x1E008, 0x1E018}, {0x1E01B, 0x1E021}, {0x1E023, 0x1E024}, {0x1E026, 0x1E02A},
    {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
    {0x1E944, 0x1E94A}};
constexpr Range kPunctuationBertKeeps[] = {
    {0x61D, 0x61D},     {0x9FD, 0x9FD},     {0xA76, 0xA76},     {0xC77, 0xC77},     {0xC84, 0xC84},
    {0x1B7D, 0x1B7E},   {0x2E43, 0x2E4F},   {0x2E52, 0x2E5D},   {0x10EAD, 0x10EAD}, {0x10F55, 0x10F59},
    {0x10F86, 0x10F89}, {0x1144B, 0x1144F}, {0x1145A, 0x1145B}, {0x1145D, 0x1145D}, {0x11660, 0x1166C},
    {0x116B9, 0x116B9}, {0x1183B, 0x1183B}, {0x11944, 0x11946}, {0x119E2, 0x119E2}, {0x11A3F, 0x11A46},
    {0x11A9A, 0x11A9C}, {0x11A9E, 0x11AA2}, {0x11B00, 0x11B09}, {0x11C41, 0x11C45}, {0x11C70, 0x11C71},
    {0x11EF7, 0x11EF8}, {0x11F43, 0x11F4F}, {0x11FFF, 0x11FFF}, {0x12FF1, 0x12FF2}, {0x16E97, 0x16E9A},
    {0x16FE2, 0x16FE2}, {0x1E95E, 0x1E95F}};
constexpr Range kFormatBertKeeps[] = {{0x890, 0x891}, {0x8E2, 0x8E2}, {0x110CD, 0x110CD}, {0x13430, 0x1343F}};

// Their decompositions are younger than the tables of `tokenizers` (U+11930 is half of one).
constexpr Range kNeverNormalized[] = {{0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xAB69, 0xAB69},
                                      {0x10781, 0x107BA}, {0x11930, 0x11930}, {0x11938, 0x11938},
                                      {0x1E030, 0x1E06D}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

struct Free {
  void operator()(utf8proc_uint8_t* bytes) const { std::free(bytes); }
};

void append_normalized(std::string_view bytes, NormalForm form, std::string& out) {
  if (bytes.empty()) return;
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const int options =
      UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (compatible ? UTF8PROC_COMPAT : 0);
  utf8proc_uint8_t* raw = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(bytes.data()), static_cast<utf8proc_ssize_t>(bytes.size()),
                   &raw, static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, Free> result(raw);
  if (size == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  LOCKSTEP_ASSERT(size >= 0, std::string("utf8proc_map: ") + utf8proc_errmsg(size));
  out.append(reinterpret_cast<const char*>(result.get()), static_cast<std::size_t>(size));
}

// A piece without the characters that are never normalised.
void append_known(std::string_view piece, NormalForm form, std::string& out) {
  std::size_t begin = 0;
  for (std::size_t at = 0, next = 0; at < piece.size(); at = next) {
    const char32_t c = character_at(piece, at, next);
    if (c < 0x3000 || !contains(kNeverNormalized, c)) continue;
    append_normalized(piece.substr(begin, at - begin), form, out);
    out.append(piece, at, next - at);
    begin = next;
  }
  append_normalized(piece.substr(begin), form, out);
}

}  // namespace

void require_unicode() {}

bool is_letter(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  const auto kind = category(c);
  return (kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO) || contains(kNewLetters, c);
}

bool is_number(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const auto kind = category(c);
  return (kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO) || contains(kNewNumbers, c);
}

bool is_word(char32_t c) {
  // The joiners, and symbols that count as alphabetic: circled and squared letters.
  static constexpr Range kMore[] = {
      {0x200C, 0x200D}, {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
  const auto kind = category(c);
  return is_letter(c) || contains(kMore, c) || (kind >= UTF8PROC_CATEGORY_MN && kind <= UTF8PROC_CATEGORY_ME) ||
         kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_PC ||
         contains(kNewNumbers, c);
}

// ASCII stays as it is in every normal form, and only the last of it before other characters can be composed with what
// follows: the rest is copied.
std::string normalize(std::string_view text, NormalForm form) {
  std::string normal;
  normal.reserve(text.size() + text.size() / 8);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t other = skip_ascii(text, at);
    const std::size_t begin = other == text.size() || other == at ? other : other - 1;
    normal.append(text, at, begin - at);
    std::size_t end = other;
    while (end < text.size() && static_cast<unsigned char>(text[end]) >= 0x80) ++end;
    append_known(text.substr(begin, end - begin), form, normal);
    at = end;
  }
  return normal;
}

std::string to_lower_case(std::string_view text) {
  std::string lower;
  lower.reserve(text.size());
  for (std::size_t at = 0, next = 0; at < text.size(); at = next) {
    const char32_t c = character_at(text, at, next);
    if (c < 0x80) {
      lower.push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c));
    } else if (c == 0x130) {
      lower += "i\u0307";
    } else {
      append_utf8(lower, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
  }
  return lower;
}

CharacterClasses::CharacterClasses() : table_(0x20000) {
  for (std::size_t c = 0; c < table_.size(); ++c) table_[c] = compute(static_cast<char32_t>(c));
}

const CharacterClasses& CharacterClasses::instance() {
  static const CharacterClasses classes;
  return classes;
}

std::uint8_t CharacterClasses::compute(char32_t c) {
  if (is_white_space(c)) return kWhiteSpace;
  if (is_letter(c)) return kLetter;
  return is_number(c) ? kNumber : kOther;
}

bool is_combining_mark(char32_t c) {
  if (c < 0x300) return false;
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_MC || kind == UTF8PROC_CATEGORY_ME;
}

std::size_t grapheme_end(std::string_view text, std::size_t at) {
  std::size_t next = 0;
  char32_t before = character_at(text, at, next);
  utf8proc_int32_t state = 0;
  while (next < text.size()) {
    const auto byte = static_cast<unsigned char>(text[next]);
    if (before < 0x80 && byte < 0x80) return before == U'\r' && byte == '\n' ? next + 1 : next;
    std::size_t after = 0;
    const char32_t c = character_at(text, next, after);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(before), static_cast<utf8proc_int32_t>(c),
                                         &state)) {
      return next;
    }
    before = c;
    next = after;
  }
  return next;
}

bool is_bert_control(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_CC || kind == UTF8PROC_CATEGORY_CO ||
         (kind == UTF8PROC_CATEGORY_CF && !contains(kFormatBertKeeps, c));
}

bool is_bert_punctuation(char32_t c) {
  if (c < 0x80) return (c > 0x20 && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') || (c > 'z' && c < 0x7F);
  // Reclassified since: U+166D is a symbol and U+111C9 a mark today.
  if (c == 0x166D || c == 0x111C9) return true;
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO && !contains(kPunctuationBertKeeps, c);
}

bool is_bert_accent(char32_t c) {
  if (c < 0x300) return false;
  if (c == 0x1734) return true;  // a spacing mark since Unicode 14
  return category(c) == UTF8PROC_CATEGORY_MN && !contains(kAccentsBertKeeps, c);
}

bool is_bert_cjk(char32_t c) {
  // 0x2B920 is what `tokenizers` has; BERT's own code says 0x2B820.
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) ||
         (c >= 0x2F800 && c <= 0x2FA1F);
}

}  // namespace lockstep::data
