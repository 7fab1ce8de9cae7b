// What turns one word into token ids: byte-pair encoding, WordPiece or a unigram model.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/data/tokenizer.h"

namespace lockstep::data {

// Token -> id, as in the vocabulary file.
using Vocabulary = std::unordered_map<std::string, TokenId>;

// Immutable; safe from many threads.
class WordModel {
 public:
  virtual ~WordModel() = default;
  // Appends the ids of `word` (UTF-8, not empty).
  virtual void encode_word(std::string_view word, std::vector<TokenId>& ids) const = 0;
  // Appends to `text` what comes out for the token `token` of the vocabulary; `first` is true at the start of the text.
  virtual void decode_token(std::string_view token, bool first, std::string& text) const = 0;
};

struct Merge {
  std::string left;
  std::string right;
};

// Byte-pair encoding, over bytes or over characters.
struct BpeOptions {
  // Over bytes: the vocabulary spells them with GPT-2's printable stand-ins (space is U+0120, ...). Over characters, as
  // SentencePiece does it: spaces come as U+2581.
  bool byte_level = true;
  bool byte_fallback = false;     // over characters: one that is not in the vocabulary becomes its bytes, <0xC3> ...
  bool strip_first_space = true;  // over characters, decode: the space that was put before the text is taken off
  Vocabulary vocabulary;
  std::vector<Merge> merges;           // in order of rank
  std::optional<std::string> unknown;  // for what the vocabulary lacks; none: it vanishes
  bool fuse_unknown = false;           // neighbouring unknowns become one
  bool ignore_merges = false;          // a word that is a token stays whole (Llama 3)
};
// Throws bad_input at `place` when a merge names a token that is not in the vocabulary.
std::shared_ptr<const WordModel> make_bpe(BpeOptions options, const std::string& place);

// Unigram language model (Kudo 2018), as SentencePiece trains it (T5, XLM-RoBERTa, ALBERT).
struct UnigramOptions {
  std::vector<std::pair<std::string, double>> tokens;  // by id, with their log-probabilities
  TokenId unknown = 0;
  bool byte_fallback = false;
  bool strip_first_space = true;  // decode
};
// Throws bad_input at `place` when the unknown token is none of the vocabulary.
std::shared_ptr<const WordModel> make_unigram(UnigramOptions options, const std::string& place);

// Appends what a token over characters stands for: U+2581 is a space, with `bytes` <0xC3> is that byte.
struct CharacterDecoding {
  bool bytes = false;
  bool strip_first = false;  // a space that the token begins with is left out
};
void decode_characters(std::string_view token, const CharacterDecoding& how, std::string& text);

struct WordPieceOptions {
  Vocabulary vocabulary;
  std::string unknown = "[UNK]";
  std::string continuation = "##";
  std::size_t max_characters = 100;  // longer words are unknown
  bool clean_up = true;              // decode: "do n't ." becomes "don't."
};
// Throws bad_input at `place` when the vocabulary lacks the unknown token.
std::shared_ptr<const WordModel> make_word_piece(WordPieceOptions options, const std::string& place);

// GPT-2's stand-in for every byte, as UTF-8.
const std::array<std::string, 256>& byte_stand_ins();

}  // namespace lockstep::data
