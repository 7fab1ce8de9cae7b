#include "lockstep/data/normalizer.h"

#include "lockstep/base/error.h"

#include "lockstep/data/unicode.h"

namespace lockstep::data {
namespace {

std::u32string clean(const std::u32string& text) {
  std::u32string cleaned;
  cleaned.reserve(text.size());
  for (const char32_t c : text) {
    if (c == 0 || c == 0xFFFD || is_bert_control(c)) continue;
    cleaned.push_back(is_white_space(c) ? U' ' : c);
  }
  return cleaned;
}

std::u32string space_out_chinese(const std::u32string& text) {
  std::u32string spaced;
  spaced.reserve(text.size());
  for (const char32_t c : text) {
    if (is_bert_cjk(c)) {
      spaced += {U' ', c, U' '};
    } else {
      spaced.push_back(c);
    }
  }
  return spaced;
}

std::u32string normalize_for_bert(std::u32string text, const BertNormalization& how) {
  if (how.clean_text) text = clean(text);
  if (how.handle_chinese_chars) text = space_out_chinese(text);
  if (how.strip_accents) {
    text = normalize(text, NormalForm::kNfd);
    std::erase_if(text, is_bert_accent);
  }
  if (how.lowercase) text = to_lower(text);
  return text;
}

// Replacements that make text longer and longer would fill any memory.
constexpr std::size_t kMostGrowth = 64;
constexpr std::size_t kAlwaysAllowed = 1 << 20;

std::u32string replace_all(const std::u32string& text, const std::u32string& from, const std::u32string& to,
                           std::size_t most) {
  std::u32string replaced;
  std::size_t begin = 0;
  for (std::size_t at = text.find(from); at != std::u32string::npos; at = text.find(from, begin)) {
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

std::u32string run_normalizer(const Normalizer& normalizer, std::u32string text, PiecePlace place) {
  using Kind = NormalizerStep::Kind;
  const std::size_t most = kMostGrowth * text.size() + kAlwaysAllowed;
  for (const NormalizerStep& step : normalizer) {
    switch (step.kind) {
      case Kind::kForm:
        text = normalize(text, step.form);
        break;
      case Kind::kLowercase:
        text = to_lower(text);
        break;
      case Kind::kBert:
        text = normalize_for_bert(std::move(text), step.bert);
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
