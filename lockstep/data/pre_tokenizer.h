// The pre-tokenisation step: text to words, the pieces that the model encodes one by one.
//
// The regular expressions of the tokenizers in use are few; each is matched by hand, in one pass and without
// backtracking, so that time is linear in the text whatever the text is.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/normalizer.h"

namespace lockstep::data {

struct PreTokenizerStep {
  enum class Kind {
    kGpt2,         // GPT-2's pattern: 's|'t|...| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
    kLlama3,       // Llama 3's and Qwen 2's: (?i:'s|...)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,k}|...
    kBert,         // white space removed, punctuation on its own
    kWhiteSpace,   // cut at white space, which is removed
    kPrefixSpace,  // every piece that does not begin with a space gets one
    kMetaspace,    // SentencePiece's: every space becomes U+2581, and one is put before the text
    kSpaceRuns     // cut before every run of U+2581
  } kind;
  int digits = 3;                                  // kLlama3: k, the longest group of digits
  enum class Prepend { kNever, kFirst, kAlways };  // kMetaspace: before no piece, the text's first, or all
  Prepend prepend = Prepend::kAlways;              // pieces that begin with U+2581 already are left alone
  bool split = false;                              // kMetaspace: cut before every U+2581
};

// SentencePiece's visible space.
inline constexpr char32_t kVisibleSpace = 0x2581;
inline constexpr std::string_view kVisibleSpaceBytes = "\xE2\x96\x81";

using PreTokenizer = std::vector<PreTokenizerStep>;

// A word as a pair (begin, end) of places in a text.
struct Word {
  std::size_t begin;
  std::size_t end;
};

// Puts the words of `text` (valid UTF-8), in order, into `words`, and returns the text that their places refer to:
// `text` itself, or `storage` where a step adds spaces.
std::string_view split_words(const PreTokenizer& steps, std::string_view text, PiecePlace place, std::string& storage,
                             std::vector<Word>& words);

// The step for a pattern as it stands in tokenizer.json; false when the pattern is not known.
bool find_pattern(std::string_view pattern, PreTokenizerStep& step);

}  // namespace lockstep::data
