#include "lockstep/data/tokenizer.h"

#include <algorithm>

#include "lockstep/data/hf_tokenizer.h"
#include "lockstep/data/unicode.h"

namespace lockstep::data {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  std::int64_t vocab_size() const override { return 256; }

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<TokenId>& ids) const override {
    ids.reserve(ids.size() + text.size());
    for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
  }

  std::size_t next_cut(std::string_view text, std::size_t from) const override { return std::min(from, text.size()); }

  std::string decode(std::span<const TokenId> ids, bool) const override {
    std::string text;
    for (const TokenId id : ids) {
      if (id >= 0 && id < 256) text.push_back(static_cast<char>(id));
    }
    return text;
  }

  std::optional<TokenId> token_id(std::string_view token) const override {
    if (token.size() != 1) return std::nullopt;
    return static_cast<unsigned char>(token.front());
  }
};

std::optional<std::string> first_of(const Tokenizer& tokenizer, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (tokenizer.token_id(name)) return name;
  }
  return std::nullopt;
}

}  // namespace

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_shared<ByteTokenizer>();
  require_unicode();
  return make_hf_tokenizer(read_hf_tokenizer(name));
}

std::optional<std::string> end_of_text_token(const Tokenizer& tokenizer) {
  return first_of(tokenizer, {"<|endoftext|>", "<|end_of_text|>", "</s>", "[SEP]"});
}

std::optional<TokenId> end_of_text_id(const Tokenizer& tokenizer) {
  const auto token = end_of_text_token(tokenizer);
  return token ? tokenizer.token_id(*token) : std::nullopt;
}

std::optional<TokenId> unknown_id(const Tokenizer& tokenizer) {
  const auto token = first_of(tokenizer, {"[UNK]", "<unk>"});
  return token ? tokenizer.token_id(*token) : std::nullopt;
}

TokenId padding_id(const Tokenizer& tokenizer) {
  if (const auto token = first_of(tokenizer, {"[PAD]", "<pad>", "<|pad|>", "<|padding|>"})) {
    return *tokenizer.token_id(*token);
  }
  return end_of_text_id(tokenizer).value_or(0);
}

}  // namespace lockstep::data
