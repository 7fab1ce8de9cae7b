#include "lockstep/data/normalizer.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/data/unicode.h"

namespace lockstep::data {
namespace {

// What BERT's steps make of ASCII, which needs no tables.
void append_plain(std::string_view ascii, const BertNormalization& how, std::string& out) {
  for (const char c : ascii) {
    const bool space = c == ' ' || (c >= 0x09 && c <= 0x0D);
    // Vertical tab and form feed are control characters to BERT before they are white space.
    const bool control = c == 0x7F || (c < 0x20 && c != '\t' && c != '\n' && c != '\r');
    if (how.clean_text && control) continue;
    if (how.clean_text && space) {
      out.push_back(' ');
    } else {
      out.push_back(how.lowercase && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c);
    }
  }
}

std::string clean(std::string_view text) {
  std::string cleaned;
  for (std::size_t at = 0, next = 0; at < text.size(); at = next) {
    const char32_t c = character_at(text, at, next);
    if (c == 0 || c == 0xFFFD || is_bert_control(c)) continue;
    append_utf8(cleaned, is_white_space(c) ? U' ' : c);
  }
  return cleaned;
}

std::string space_out_chinese(std::string_view text) {
  std::string spaced;
  for (std::size_t at = 0, next = 0; at < text.size(); at = next) {
    const bool alone = is_bert_cjk(character_at(text, at, next));
    if (alone) spaced.push_back(' ');
    spaced.append(text, at, next - at);
    if (alone) spaced.push_back(' ');
  }
  return spaced;
}

std::string without_accents(std::string_view text) {
  std::string plain;
  for (std::size_t at = 0, next = 0; at < text.size(); at = next) {
    if (!is_bert_accent(character_at(text, at, next))) plain.append(text, at, next - at);
  }
  return plain;
}

// Each step looks at one character, and decomposition never reaches across ASCII: runs of either kind by themselves.
std::string normalize_for_bert(std::string_view text, const BertNormalization& how) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t other = skip_ascii(text, at);
    append_plain(text.substr(at, other - at), how, out);
    std::size_t end = other;
    while (end < text.size() && static_cast<unsigned char>(text[end]) >= 0x80) ++end;
    std::string piece(text.substr(other, end - other));
    if (how.clean_text) piece = clean(piece);
    if (how.handle_chinese_chars) piece = space_out_chinese(piece);
    if (how.strip_accents) piece = without_accents(normalize(piece, NormalForm::kNfd));
    out += how.lowercase ? to_lower_case(piece) : piece;
    at = end;
  }
  return out;
}

// Replacements that make text longer and longer would fill any memory.
constexpr std::size_t kMostGrowth = 64;
constexpr std::size_t kAlwaysAllowed = 1 << 20;

UserError grows_too_much() {
  return bad_input("the tokenizer's replacements make the text more than 64 times as long",
                   "check the Replace steps in tokenizer.json");
}

std::string replace_all(const std::string& text, const std::string& from, const std::string& to, std::size_t most) {
  std::string replaced;
  replaced.reserve(text.size());
  std::size_t begin = 0;
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, begin)) {
    replaced.append(text, begin, at - begin).append(to);
    begin = at + from.size();
    if (replaced.size() > most) throw grows_too_much();
  }
  return replaced.append(text, begin);
}

std::string replace_space_runs(const std::string& text, const std::string& to, std::size_t most) {
  std::string replaced;
  replaced.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_not_of(' ', at), text.size());
    if (end - at < 2) {
      replaced.push_back(text[at++]);
      continue;
    }
    replaced += to;
    at = end;
    if (replaced.size() > most) throw grows_too_much();
  }
  return replaced;
}

std::string_view stripped(std::string_view text, bool left, bool right) {
  std::size_t begin = 0, end = 0;
  bool any = false;
  for (std::size_t at = 0, next = 0; at < text.size(); at = next) {
    if (is_white_space(character_at(text, at, next))) continue;
    if (!any) begin = at;
    any = true;
    end = next;
  }
  if (!any) return left || right ? std::string_view() : text;
  return text.substr(left ? begin : 0, (right ? end : text.size()) - (left ? begin : 0));
}

constexpr char32_t kNothing = 0xFFFFFFFF;

// Every character by what `change` gives for it; kNothing: it vanishes.
template <class Change>
std::string filtered(std::string_view text, const Change& change) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0, next = 0; at < text.size(); at = next) {
    const char32_t c = change(character_at(text, at, next));
    if (c != kNothing) append_utf8(out, c);
  }
  return out;
}

char32_t nmt_character(char32_t c) {
  const bool control =
      (c >= 0x1 && c <= 0x8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
  if (control) return kNothing;
  const bool space = c == 0x9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
                     c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
  return space ? U' ' : c;
}

}  // namespace

std::string run_normalizer(const Normalizer& normalizer, std::string text, PiecePlace place) {
  using Kind = NormalizerStep::Kind;
  const std::size_t most = kMostGrowth * text.size() + kAlwaysAllowed;
  for (const NormalizerStep& step : normalizer) {
    switch (step.kind) {
      case Kind::kForm:
        text = normalize(text, step.form);
        break;
      case Kind::kLowercase:
        text = to_lower_case(text);
        break;
      case Kind::kBert:
        text = normalize_for_bert(text, step.bert);
        break;
      case Kind::kPrepend:
        if (!text.empty() && !place.goes_on) text.insert(0, step.to);
        break;
      case Kind::kReplace:
        text = replace_all(text, step.from, step.to, most);
        break;
      case Kind::kReplaceSpaces:
        text = replace_space_runs(text, step.to, most);
        break;
      case Kind::kStrip:
        text = std::string(stripped(text, step.left, step.right));
        break;
      case Kind::kStripAccents:
        text = filtered(text, [](char32_t c) { return is_combining_mark(c) ? kNothing : c; });
        break;
      case Kind::kNmt:
        text = filtered(text, nmt_character);
        break;
      case Kind::kCharsmap:
        text = step.charsmap->normalize(text);
        if (text.size() > most) throw grows_too_much();
        break;
    }
  }
  return text;
}

}  // namespace lockstep::data
