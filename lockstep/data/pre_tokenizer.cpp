#include "lockstep/data/pre_tokenizer.h"

#include <algorithm>

#include "lockstep/data/unicode.h"

namespace lockstep::data {
namespace {

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Head = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})";
constexpr std::string_view kLlama3Tail = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

bool is_newline(char32_t c) { return c == '\n' || c == '\r'; }
bool is_other(char32_t c) { return !is_white_space(c) && !is_letter(c) && !is_number(c); }

// Letters as (?i:...) sees them; U+017F is the long s.
char32_t fold(char32_t c) {
  if (c >= 'A' && c <= 'Z') return c + 32;
  return c == 0x17F ? U's' : c;
}

template <typename Class>
std::size_t run_end(std::u32string_view text, std::size_t at, Class in_class) {
  while (at < text.size() && in_class(text[at])) ++at;
  return at;
}

// Length of 's 't 're 've 'm 'll 'd at the start of `text`, 0 when there is none.
std::size_t contraction(std::u32string_view text, bool any_case) {
  if (text.size() < 2 || text[0] != '\'') return 0;
  const char32_t first = any_case ? fold(text[1]) : text[1];
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if (text.size() < 3) return 0;
  const char32_t second = any_case ? fold(text[2]) : text[2];
  const bool two =
      (first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l');
  return two ? 3 : 0;
}

// \s+(?!\S)|\s+ : the last white space before a word is left to that word, unless it is the only one.
std::size_t white_space_end(std::u32string_view text, std::size_t at) {
  const std::size_t end = run_end(text, at, is_white_space);
  return end == text.size() || end == at + 1 ? end : end - 1;
}

std::size_t gpt2_end(std::u32string_view text, std::size_t at) {
  if (const std::size_t length = contraction(text.substr(at), false)) return at + length;
  const std::size_t body = text[at] == ' ' ? at + 1 : at;
  if (body < text.size()) {
    const char32_t c = text[body];
    if (is_letter(c)) return run_end(text, body, is_letter);
    if (is_number(c)) return run_end(text, body, is_number);
    if (!is_white_space(c)) return run_end(text, body, is_other);
  }
  return white_space_end(text, at);
}

std::size_t llama3_end(std::u32string_view text, std::size_t at, int digits) {
  if (const std::size_t length = contraction(text.substr(at), true)) return at + length;
  const char32_t c = text[at];
  if (is_letter(c)) return run_end(text, at, is_letter);
  if (is_number(c)) {
    const std::size_t limit = std::min(text.size(), at + static_cast<std::size_t>(digits));
    return run_end(text.substr(0, limit), at, is_number);
  }
  if (!is_newline(c) && at + 1 < text.size() && is_letter(text[at + 1])) return run_end(text, at + 1, is_letter);
  const std::size_t body = c == ' ' ? at + 1 : at;
  if (body < text.size() && is_other(text[body])) return run_end(text, run_end(text, body, is_other), is_newline);
  // \s*[\r\n]+ ends after the last line break of the run of white space.
  for (std::size_t end = run_end(text, at, is_white_space); end > at; --end) {
    if (is_newline(text[end - 1])) return end;
  }
  return white_space_end(text, at);
}

void split_bert(std::u32string_view text, Word piece, std::vector<Word>& words) {
  std::size_t begin = piece.begin;
  const auto flush = [&](std::size_t end) {
    if (begin < end) words.push_back({begin, end});
  };
  for (std::size_t at = piece.begin; at < piece.end; ++at) {
    const bool punctuation = is_bert_punctuation(text[at]);
    if (!punctuation && !is_white_space(text[at])) continue;
    flush(at);
    if (punctuation) words.push_back({at, at + 1});
    begin = at + 1;
  }
  flush(piece.end);
}

// Before every visible space, or (`runs`) before the first of each run of them.
void split_at_spaces(std::u32string_view text, Word piece, bool runs, std::vector<Word>& words) {
  std::size_t begin = piece.begin;
  for (std::size_t at = piece.begin + 1; at < piece.end; ++at) {
    if (text[at] != kVisibleSpace || (runs && text[at - 1] == kVisibleSpace)) continue;
    words.push_back({begin, at});
    begin = at;
  }
  words.push_back({begin, piece.end});
}

void split_piece(const PreTokenizerStep& step, std::u32string_view text, Word piece, std::vector<Word>& words) {
  using Kind = PreTokenizerStep::Kind;
  if (step.kind == Kind::kBert) return split_bert(text, piece, words);
  if (step.kind == Kind::kSpaceRuns) return split_at_spaces(text, piece, true, words);
  if (step.kind == Kind::kMetaspace) return split_at_spaces(text, piece, false, words);
  const std::u32string_view own = text.substr(0, piece.end);  // a piece is matched as if it were the whole text
  for (std::size_t at = piece.begin; at < piece.end;) {
    const std::size_t end = step.kind == Kind::kGpt2 ? gpt2_end(own, at) : llama3_end(own, at, step.digits);
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

void add_spaces(const PreTokenizerStep& step, PiecePlace place, std::u32string& text, std::vector<Word>& words) {
  const char32_t space = step.kind == PreTokenizerStep::Kind::kMetaspace ? kVisibleSpace : U' ';
  if (space != U' ') std::replace(text.begin(), text.end(), U' ', space);
  std::u32string spaced;
  spaced.reserve(text.size() + words.size());
  for (std::size_t i = 0; i < words.size(); ++i) {
    const Word word = words[i];
    const std::size_t begin = spaced.size();
    if (text[word.begin] != space && puts_space(step, i, place)) spaced.push_back(space);
    spaced.append(text, word.begin, word.end - word.begin);
    words[i] = {begin, spaced.size()};
  }
  text = std::move(spaced);
}

}  // namespace

std::vector<Word> split_words(const PreTokenizer& steps, std::u32string& text, PiecePlace place) {
  using Kind = PreTokenizerStep::Kind;
  std::vector<Word> words;
  if (!text.empty()) words.push_back({0, text.size()});
  for (const PreTokenizerStep& step : steps) {
    if (step.kind == Kind::kPrefixSpace || step.kind == Kind::kMetaspace) add_spaces(step, place, text, words);
    if (step.kind == Kind::kPrefixSpace || (step.kind == Kind::kMetaspace && !step.split)) continue;
    std::vector<Word> finer;
    for (const Word piece : words) split_piece(step, text, piece, finer);
    words = std::move(finer);
  }
  return words;
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
