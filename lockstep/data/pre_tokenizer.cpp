#include "lockstep/data/pre_tokenizer.h"

#include <algorithm>

#include "lockstep/data/unicode.h"

namespace lockstep::data {
namespace {

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Head = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})";
constexpr std::string_view kLlama3Tail = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

bool is_newline(char c) { return c == '\n' || c == '\r'; }

// Letters as (?i:...) sees them; U+017F is the long s.
char32_t fold(char32_t c) {
  if (c >= 'A' && c <= 'Z') return c + 32;
  return c == 0x17F ? U's' : c;
}

// Matches the patterns at places of a text; what lies behind its end does not exist for them.
class Matcher {
 public:
  explicit Matcher(std::string_view text) : text_(text), classes_(CharacterClasses::instance()) {}

  std::size_t gpt2_end(std::size_t at) const {
    if (const std::size_t end = contraction_end(at, false)) return end;
    const std::size_t body = text_[at] == ' ' ? at + 1 : at;
    if (body < text_.size()) {
      const std::uint8_t kind = class_at(body);
      if (kind != kWhiteSpace) return run_end(body, kind);
    }
    return white_space_end(at);
  }

  std::size_t llama3_end(std::size_t at, int digits) const {
    if (const std::size_t end = contraction_end(at, true)) return end;
    std::size_t next = 0;
    const std::uint8_t kind = classes_.of(character_at(text_, at, next));
    if (kind == kLetter) return run_end(next, kLetter);
    if (kind == kNumber) {
      for (int i = 1; i < digits && next < text_.size() && class_at(next) == kNumber; ++i) next = after(next);
      return next;
    }
    if (!is_newline(text_[at]) && next < text_.size() && class_at(next) == kLetter) return run_end(next, kLetter);
    const std::size_t body = text_[at] == ' ' ? at + 1 : at;
    if (body < text_.size() && class_at(body) == kOther) {
      std::size_t end = run_end(body, kOther);
      while (end < text_.size() && is_newline(text_[end])) ++end;
      return end;
    }
    // \s*[\r\n]+ ends after the last line break of the run of white space.
    for (std::size_t end = run_end(at, kWhiteSpace); end > at; --end) {
      if (is_newline(text_[end - 1])) return end;
    }
    return white_space_end(at);
  }

 private:
  std::uint8_t class_at(std::size_t at) const {
    std::size_t next = 0;
    return classes_.of(character_at(text_, at, next));
  }

  std::size_t after(std::size_t at) const {
    std::size_t next = 0;
    character_at(text_, at, next);
    return next;
  }

  std::size_t run_end(std::size_t at, std::uint8_t kinds) const {
    for (std::size_t next = 0; at < text_.size(); at = next) {
      if ((classes_.of(character_at(text_, at, next)) & kinds) == 0) break;
    }
    return at;
  }

  // The end of 's 't 're 've 'm 'll 'd at `at`, 0 when there is none.
  std::size_t contraction_end(std::size_t at, bool any_case) const {
    if (text_[at] != '\'' || at + 1 >= text_.size()) return 0;
    std::size_t next = at + 1;
    const auto letter = [&] {
      const char32_t c = character_at(text_, next, next);
      return any_case ? fold(c) : c;
    };
    const char32_t first = letter();
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return next;
    if (next >= text_.size()) return 0;
    const char32_t second = letter();
    const bool two =
        (first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l');
    return two ? next : 0;
  }

  // \s+(?!\S)|\s+ : the last white space before a word is left to that word, unless it is the only one.
  std::size_t white_space_end(std::size_t at) const {
    std::size_t last = at;
    std::size_t end = at;
    for (std::size_t next = 0; end < text_.size(); end = next) {
      if (classes_.of(character_at(text_, end, next)) != kWhiteSpace) break;
      last = end;
    }
    return end == text_.size() || last == at ? end : last;
  }

  std::string_view text_;
  const CharacterClasses& classes_;
};

// At white space, which is removed; with `punctuations` every punctuation character is a word too.
void split_at_white_space(std::string_view text, Word piece, bool punctuations, std::vector<Word>& words) {
  std::size_t begin = piece.begin;
  const auto flush = [&](std::size_t end) {
    if (begin < end) words.push_back({begin, end});
  };
  for (std::size_t at = piece.begin, next = 0; at < piece.end; at = next) {
    const char32_t c = character_at(text, at, next);
    const bool punctuation = punctuations && is_bert_punctuation(c);
    if (!punctuation && !is_white_space(c)) continue;
    flush(at);
    if (punctuation) words.push_back({at, next});
    begin = next;
  }
  flush(piece.end);
}

// Before every visible space, or (`runs`) before the first of each run of them.
void split_at_spaces(std::string_view text, Word piece, bool runs, std::vector<Word>& words) {
  constexpr std::size_t kWidth = kVisibleSpaceBytes.size();
  const std::string_view own = text.substr(0, piece.end);
  std::size_t begin = piece.begin;
  std::size_t behind = own.substr(begin).starts_with(kVisibleSpaceBytes) ? begin + kWidth : begin;  // the last one
  for (std::size_t at = own.find(kVisibleSpaceBytes, begin + 1); at != std::string_view::npos;
       at = own.find(kVisibleSpaceBytes, at + kWidth)) {
    const bool in_run = runs && at == behind;
    behind = at + kWidth;
    if (in_run) continue;
    words.push_back({begin, at});
    begin = at;
  }
  words.push_back({begin, piece.end});
}

void split_piece(const PreTokenizerStep& step, std::string_view text, Word piece, std::vector<Word>& words) {
  using Kind = PreTokenizerStep::Kind;
  if (step.kind == Kind::kBert || step.kind == Kind::kWhiteSpace) {
    return split_at_white_space(text, piece, step.kind == Kind::kBert, words);
  }
  if (step.kind == Kind::kSpaceRuns) return split_at_spaces(text, piece, true, words);
  if (step.kind == Kind::kMetaspace) return split_at_spaces(text, piece, false, words);
  const Matcher matcher(text.substr(0, piece.end));  // a piece is matched as if it were the whole text
  for (std::size_t at = piece.begin; at < piece.end;) {
    const std::size_t end = step.kind == Kind::kGpt2 ? matcher.gpt2_end(at) : matcher.llama3_end(at, step.digits);
    words.push_back({at, end});
    at = end;
  }
}

// Whether the step puts a space before the piece number `piece` of a text that stands at `place`.
bool puts_space(const PreTokenizerStep& step, std::size_t piece, PiecePlace place) {
  if (piece == 0 && place.goes_on) return false;
  if (step.kind == PreTokenizerStep::Kind::kPrefixSpace) return true;
  using Prepend = PreTokenizerStep::Prepend;
  return step.prepend == Prepend::kAlways || (step.prepend == Prepend::kFirst && piece == 0 && place.first);
}

std::string add_spaces(const PreTokenizerStep& step, PiecePlace place, std::string_view text,
                       std::vector<Word>& words) {
  const bool visible = step.kind == PreTokenizerStep::Kind::kMetaspace;
  const std::string_view space = visible ? kVisibleSpaceBytes : " ";
  std::string spaced;
  spaced.reserve(text.size() + text.size() / 2 + words.size() * space.size());
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = text.substr(words[i].begin, words[i].end - words[i].begin);
    const std::size_t begin = spaced.size();
    const bool has_one = word.starts_with(space) || word.starts_with(' ');
    if (!has_one && puts_space(step, i, place)) spaced += space;
    for (const char c : word) {
      if (c == ' ') {
        spaced += space;
      } else {
        spaced.push_back(c);
      }
    }
    words[i] = {begin, spaced.size()};
  }
  return spaced;
}

}  // namespace

std::string_view split_words(const PreTokenizer& steps, std::string_view text, PiecePlace place, std::string& storage,
                             std::vector<Word>& words) {
  using Kind = PreTokenizerStep::Kind;
  words.clear();
  if (!text.empty()) words.push_back({0, text.size()});
  std::vector<Word> finer;
  for (const PreTokenizerStep& step : steps) {
    // What white space comes before is the beginning of a word, and no longer that of the text.
    std::size_t next = 0;
    if (step.kind == Kind::kWhiteSpace && !text.empty() && is_white_space(character_at(text, 0, next))) {
      place = {.first = false, .goes_on = false};
    }
    if (step.kind == Kind::kPrefixSpace || step.kind == Kind::kMetaspace) {
      storage = add_spaces(step, place, text, words);
      text = storage;
    }
    if (step.kind == Kind::kPrefixSpace || (step.kind == Kind::kMetaspace && !step.split)) continue;
    finer.clear();
    for (const Word piece : words) split_piece(step, text, piece, finer);
    words.swap(finer);
  }
  return text;
}

bool find_pattern(std::string_view pattern, PreTokenizerStep& step) {
  if (pattern == kGpt2Pattern) {
    step.kind = PreTokenizerStep::Kind::kGpt2;
    return true;
  }
  if (!pattern.starts_with(kLlama3Head) || !pattern.ends_with(kLlama3Tail)) return false;
  const std::size_t fixed = kLlama3Head.size() + kLlama3Tail.size();
  if (pattern.size() < fixed) return false;
  const std::string_view group = pattern.substr(kLlama3Head.size(), pattern.size() - fixed);
  step.kind = PreTokenizerStep::Kind::kLlama3;
  step.digits = group.empty() ? 1 : 3;
  return group.empty() || group == "{1,3}";
}

}  // namespace lockstep::data
