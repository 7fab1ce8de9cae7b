// Tokenizers: text to ids and back.
//
// `bytes` needs no files: the ids are the UTF-8 bytes. The others are read from Hugging Face files and give the ids
// that the `tokenizers` package gives with add_special_tokens=False (tests/data/compare_tokenizers.py compares them).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

using TokenId = std::int32_t;

// Immutable; safe from many threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // All ids are in [0, vocab_size()).
  virtual std::int64_t vocab_size() const = 0;

  // Appends the ids of `text` (UTF-8; each invalid sequence reads as U+FFFD, as Python's errors="replace") to `ids`.
  virtual void encode(std::string_view text, std::vector<TokenId>& ids) const = 0;

  // Ids out of range are omitted. `skip_special` omits the special tokens ([CLS], <|endoftext|>, ...).
  virtual std::string decode(std::span<const TokenId> ids, bool skip_special = false) const = 0;

  // The id of one whole token ("[CLS]", "<|endoftext|>"), where the vocabulary has it.
  virtual std::optional<TokenId> token_id(std::string_view token) const = 0;

  // Appends the ids of `text` where it continues the text of `ids`: as encode(), but a tokenizer that puts a space
  // before every text puts none here, unless `ids` is empty or ends in an added token.
  virtual void encode_after(std::string_view text, std::vector<TokenId>& ids) const { encode(text, ids); }

  // The first place from `from` on where `text` may be encoded in two parts that give the ids of the whole: the part
  // before with encode(), the part behind with encode_rest(). text.size() when there is none.
  virtual std::size_t next_cut(std::string_view text, std::size_t from) const {
    static_cast<void>(from);
    return text.size();
  }
  virtual void encode_rest(std::string_view text, std::vector<TokenId>& ids) const { encode(text, ids); }

  std::vector<TokenId> encode(std::string_view text) const {
    std::vector<TokenId> ids;
    encode(text, ids);
    return ids;
  }
};

// `name` is "bytes"; or a folder with tokenizer.json, vocab.json + merges.txt, or vocab.txt; or one of those files
// (merges.txt is looked for beside vocab.json). Read from tokenizer.json: models BPE (over bytes, or over characters
// with byte fallback as in Llama 2 and Mistral) and WordPiece; normalizers NFC NFD NFKC NFKD Lowercase BertNormalizer
// Prepend Replace Sequence; pre-tokenizers ByteLevel, BertPreTokenizer, Metaspace, Sequence, and Split with the
// patterns of GPT-2, Llama 3 and Qwen 2; added tokens with all their flags. Anything else in the file is refused by
// name, never ignored. Throws UserError.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name);

// The token that ends a document, by its usual names ("<|endoftext|>", "<|end_of_text|>", "</s>", "[SEP]"), if any.
std::optional<std::string> end_of_text_token(const Tokenizer& tokenizer);
std::optional<TokenId> end_of_text_id(const Tokenizer& tokenizer);

// The id that stands for what the vocabulary lacks ("[UNK]", "<unk>"), if any.
std::optional<TokenId> unknown_id(const Tokenizer& tokenizer);

// The token that fills up short sequences: "[PAD]", "<pad>", "<|pad|>", "<|padding|>", else end_of_text_id(), else 0.
TokenId padding_id(const Tokenizer& tokenizer);

}  // namespace lockstep::data
