#include "lockstep/data/normalizer.h"

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

std::string replace_all(const std::string& text, const std::string& from, const std::string& to, std::size_t most) {
  std::string replaced;
  replaced.reserve(text.size());
  std::size_t begin = 0;
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, begin)) {
    replaced.append(text, begin, at - begin).append(to);
    begin = at + from.size();
    if (replaced.size() > most) {
      throw bad_input("the tokenizer's replacements make the text more than 64 times as long",
                      "check the Replace steps in tokenizer.json");
    }
  }
  return replaced.append(text, begin);
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
    }
  }
  return text;
}

}  // namespace lockstep::data
