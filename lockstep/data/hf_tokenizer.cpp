#include "lockstep/data/hf_tokenizer.h"

#include <algorithm>
#include <unordered_set>

#include "lockstep/data/unicode.h"

namespace lockstep::data {
namespace {

bool is_ascii_alphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// A line break between a printable ASCII character and a letter or digit: no pattern, normal form or added token
// without white space reaches across it, so text may be encoded in two parts there.
std::size_t next_cut(std::string_view text, std::size_t from) {
  for (std::size_t at = text.find('\n', from); at != std::string_view::npos; at = text.find('\n', at + 1)) {
    if (at == 0 || at + 1 >= text.size()) continue;
    if (text[at - 1] > 0x20 && text[at - 1] < 0x7F && is_ascii_alphanumeric(text[at + 1])) return at + 1;
  }
  return text.size();
}

class HfTokenizer final : public Tokenizer {
 public:
  explicit HfTokenizer(HfTokenizerParts parts) : parts_(std::move(parts)) {
    for (const auto& [token, id] : parts_.vocabulary) tokens_.emplace(id, token);
    std::vector<AddedToken> raw;
    std::vector<AddedToken> normalized;
    for (const AddedToken& token : parts_.added) {
      parts_.vocabulary.insert_or_assign(token.content, token.id);
      tokens_.insert_or_assign(token.id, token.content);
      added_.insert(token.id);
      if (token.special) special_.insert(token.id);
      const bool spaced = std::any_of(token.content.begin(), token.content.end(), [](char c) { return c <= 0x20; });
      if (spaced || token.lstrip || token.rstrip) may_cut_ = false;
      if (token.normalized) {
        normalized.push_back(token);
        normalized.back().content = encode_utf8(run_normalizer(parts_.normalizer, decode_utf8(token.content)));
        tokens_.insert_or_assign(token.id, normalized.back().content);  // decoded as it was found
      } else {
        raw.push_back(token);
      }
    }
    raw_matcher_ = AddedTokenMatcher(std::move(raw));
    normalized_matcher_ = AddedTokenMatcher(std::move(normalized));
    for (const PreTokenizerStep& step : parts_.pre_tokenizer) {
      using Kind = PreTokenizerStep::Kind;
      if (step.kind == Kind::kPrefixSpace || step.kind == Kind::kMetaspace) may_cut_ = false;
    }
    for (const NormalizerStep& step : parts_.normalizer) {
      if (step.kind == NormalizerStep::Kind::kPrepend || step.kind == NormalizerStep::Kind::kReplace) may_cut_ = false;
    }
    if (parts_.pre_tokenizer.empty()) may_cut_ = false;
    for (const auto& [id, token] : tokens_) vocab_size_ = std::max<std::int64_t>(vocab_size_, id + std::int64_t{1});
  }

  std::int64_t vocab_size() const override { return vocab_size_; }

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<TokenId>& ids) const override { encode_at({}, text, ids); }

  void encode_after(std::string_view text, std::vector<TokenId>& ids) const override {
    const bool first = ids.empty();
    encode_at({.first = first, .goes_on = !first && !added_.contains(ids.back())}, text, ids);
  }

  std::string decode(std::span<const TokenId> ids, bool skip_special) const override {
    std::string text;
    bool first = true;
    for (const TokenId id : ids) {
      const auto token = tokens_.find(id);
      if (token == tokens_.end() || (skip_special && special_.contains(id))) continue;
      parts_.model->decode_token(token->second, first, text);
      first = false;
    }
    // Tokens may cut characters in two; what does not add up to UTF-8 in the end is replaced.
    return encode_utf8(decode_utf8(text));
  }

  std::optional<TokenId> token_id(std::string_view token) const override {
    const auto found = parts_.vocabulary.find(std::string(token));
    if (found == parts_.vocabulary.end()) return std::nullopt;
    return found->second;
  }

 private:
  static constexpr std::size_t kChunk = std::size_t{1} << 20;
  static constexpr std::size_t kCachedWords = 100'000;
  static constexpr std::size_t kLongestCachedWord = 64;
  using Cache = std::unordered_map<std::string, std::vector<TokenId>>;

  void encode_at(PiecePlace place, std::string_view text, std::vector<TokenId>& ids) const {
    Cache cache;
    while (!text.empty()) {
      const std::size_t end = may_cut_ && text.size() > kChunk ? next_cut(text, kChunk) : text.size();
      encode_chunk(place, text.substr(0, end), cache, ids);
      text.remove_prefix(end);
    }
  }

  // `place` is that of the first piece; the others follow an added token.
  void encode_chunk(PiecePlace place, std::string_view bytes, Cache& cache, std::vector<TokenId>& ids) const {
    constexpr PiecePlace kBehindToken{.first = false, .goes_on = false};
    const std::string text = encode_utf8(decode_utf8(bytes));
    for (const AddedTokenMatcher::Part& part : raw_matcher_.split(text)) {
      if (part.id >= 0) {
        ids.push_back(part.id);
        place = kBehindToken;
        continue;
      }
      const std::string normal = encode_utf8(run_normalizer(parts_.normalizer, decode_utf8(part.text), place));
      for (const AddedTokenMatcher::Part& piece : normalized_matcher_.split(normal)) {
        if (piece.id >= 0) {
          ids.push_back(piece.id);
        } else {
          encode_piece(place, piece.text, cache, ids);
        }
        place = kBehindToken;
      }
    }
  }

  void encode_piece(PiecePlace place, std::string_view piece, Cache& cache, std::vector<TokenId>& ids) const {
    std::u32string text = decode_utf8(piece);
    for (const Word word : split_words(parts_.pre_tokenizer, text, place)) {
      std::string bytes = encode_utf8(std::u32string_view(text).substr(word.begin, word.end - word.begin));
      if (bytes.size() > kLongestCachedWord) {
        parts_.model->encode_word(bytes, ids);
        continue;
      }
      auto found = cache.find(bytes);
      if (found == cache.end()) {
        if (cache.size() >= kCachedWords) cache.clear();
        std::vector<TokenId> encoded;
        parts_.model->encode_word(bytes, encoded);
        found = cache.emplace(std::move(bytes), std::move(encoded)).first;
      }
      ids.insert(ids.end(), found->second.begin(), found->second.end());
    }
  }

  HfTokenizerParts parts_;
  std::unordered_map<TokenId, std::string> tokens_;
  std::unordered_set<TokenId> added_;
  std::unordered_set<TokenId> special_;
  AddedTokenMatcher raw_matcher_;
  AddedTokenMatcher normalized_matcher_;
  std::int64_t vocab_size_ = 0;
  bool may_cut_ = true;
};

}  // namespace

std::shared_ptr<const Tokenizer> make_hf_tokenizer(HfTokenizerParts parts) {
  return std::make_shared<HfTokenizer>(std::move(parts));
}

}  // namespace lockstep::data
