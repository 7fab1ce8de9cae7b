#include "lockstep/data/hf_tokenizer.h"

#include <algorithm>
#include <mutex>
#include <unordered_set>

#include "lockstep/data/unicode.h"
#include "lockstep/data/word_cache.h"

namespace lockstep::data {
namespace {

bool is_ascii_alphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Where a text may be encoded in two parts.
enum class Cuts {
  kNone,
  // Behind a line break between a printable ASCII character and a letter or digit: no pattern, normal form or added
  // token without white space reaches across it.
  kBehindLines,
  // Before a space between ASCII letters or digits: where every run of spaces begins a word.
  kBeforeSpaces
};

bool is_cut(std::string_view text, std::size_t at, Cuts cuts) {
  if (cuts == Cuts::kBehindLines) {
    return at >= 2 && text[at - 2] > 0x20 && text[at - 2] < 0x7F && is_ascii_alphanumeric(text[at]);
  }
  return at >= 1 && is_ascii_alphanumeric(text[at - 1]) && is_ascii_alphanumeric(text[at + 1]);
}

bool is_space_to_visible(const NormalizerStep& step) {
  return step.kind == NormalizerStep::Kind::kReplace && step.from == " " && step.to == kVisibleSpaceBytes;
}

Cuts cuts_of(const HfTokenizerParts& parts) {
  using Kind = PreTokenizerStep::Kind;
  for (const AddedToken& token : parts.added) {
    const bool spaced = std::any_of(token.content.begin(), token.content.end(), [](char c) { return c <= 0x20; });
    if (spaced || token.lstrip || token.rstrip) return Cuts::kNone;
  }
  bool visible = false;
  bool plain = true;  // an added token is found as it is written
  for (const NormalizerStep& step : parts.normalizer) {
    plain = plain && (step.kind == NormalizerStep::Kind::kReplace || step.kind == NormalizerStep::Kind::kPrepend);
    visible = visible || is_space_to_visible(step);
    if (step.kind == NormalizerStep::Kind::kReplace && !is_space_to_visible(step)) return Cuts::kNone;
    if (step.kind == NormalizerStep::Kind::kStrip) return Cuts::kNone;  // a part's ends are not the text's
  }
  if (parts.pre_tokenizer.empty()) return Cuts::kNone;
  const PreTokenizerStep& last = parts.pre_tokenizer.back();
  const bool normalized =
      std::any_of(parts.added.begin(), parts.added.end(), [](const AddedToken& token) { return token.normalized; });
  const Cuts before_spaces = plain || !normalized ? Cuts::kBeforeSpaces : Cuts::kNone;
  const bool metaspace = parts.pre_tokenizer.front().kind == Kind::kMetaspace;
  if (last.kind == Kind::kMetaspace) return last.split ? before_spaces : Cuts::kNone;
  if (last.kind == Kind::kSpaceRuns) return visible || metaspace ? before_spaces : Cuts::kNone;
  const bool prepends = std::any_of(parts.normalizer.begin(), parts.normalizer.end(), [](const NormalizerStep& step) {
    return step.kind == NormalizerStep::Kind::kPrepend;
  });
  return visible || metaspace || prepends ? Cuts::kNone : Cuts::kBehindLines;
}

// What one thread needs while it encodes; kept for the next one.
struct Scratch {
  WordCache cache;
  std::vector<Word> words;
  std::vector<TokenId> ids;
};

class ScratchPool {
 public:
  std::unique_ptr<Scratch> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Scratch>();
    auto scratch = std::move(free_.back());
    free_.pop_back();
    return scratch;
  }
  void give_back(std::unique_ptr<Scratch> scratch) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;
};

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
      if (token.normalized) {
        normalized.push_back(token);
        std::string storage;
        normalized.back().content = run_normalizer(parts_.normalizer, std::string(sound_utf8(token.content, storage)));
        tokens_.insert_or_assign(token.id, normalized.back().content);  // decoded as it was found
      } else {
        raw.push_back(token);
      }
    }
    raw_matcher_ = AddedTokenMatcher(std::move(raw));
    normalized_matcher_ = AddedTokenMatcher(std::move(normalized));
    cuts_ = cuts_of(parts_);
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

  std::size_t next_cut(std::string_view text, std::size_t from) const override {
    if (cuts_ == Cuts::kNone) return text.size();
    const char mark = cuts_ == Cuts::kBehindLines ? '\n' : ' ';
    for (std::size_t at = text.find(mark, from); at < text.size(); at = text.find(mark, at + 1)) {
      const std::size_t cut = cuts_ == Cuts::kBehindLines ? at + 1 : at;
      if (cut + 1 < text.size() && is_cut(text, cut, cuts_) && !ends_in_added_token(text.substr(0, cut))) return cut;
    }
    return text.size();
  }

  void encode_rest(std::string_view text, std::vector<TokenId>& ids) const override {
    encode_at({.first = false, .goes_on = true}, text, ids);
  }

 private:
  static constexpr std::size_t kChunk = std::size_t{64} << 10;  // what is worked on stays in the processor's cache

  // A text behind such a token is not one that goes on.
  bool ends_in_added_token(std::string_view text) const {
    return std::any_of(parts_.added.begin(), parts_.added.end(), [&](const AddedToken& token) {
      return !token.content.empty() && text.ends_with(token.content);
    });
  }

  void encode_at(PiecePlace place, std::string_view text, std::vector<TokenId>& ids) const {
    std::unique_ptr<Scratch> scratch = pool_.take();
    while (!text.empty()) {
      const std::size_t end = text.size() > kChunk ? next_cut(text, kChunk) : text.size();
      encode_chunk(place, text.substr(0, end), *scratch, ids);
      text.remove_prefix(end);
      place = {.first = false, .goes_on = true};
    }
    pool_.give_back(std::move(scratch));
  }

  // `place` is that of the first piece; the others follow an added token.
  void encode_chunk(PiecePlace place, std::string_view bytes, Scratch& scratch, std::vector<TokenId>& ids) const {
    constexpr PiecePlace kBehindToken{.first = false, .goes_on = false};
    std::string storage;
    for (const AddedTokenMatcher::Part& part : raw_matcher_.split(sound_utf8(bytes, storage))) {
      if (part.id >= 0) {
        ids.push_back(part.id);
        place = kBehindToken;
        continue;
      }
      std::string normal;
      std::string_view text = part.text;
      if (!parts_.normalizer.empty()) {
        normal = run_normalizer(parts_.normalizer, std::string(part.text), place);
        text = normal;
      }
      for (const AddedTokenMatcher::Part& piece : normalized_matcher_.split(text)) {
        if (piece.id >= 0) {
          ids.push_back(piece.id);
        } else {
          encode_piece(place, piece.text, scratch, ids);
        }
        place = kBehindToken;
      }
    }
  }

  void encode_piece(PiecePlace place, std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const {
    std::string storage;
    const std::string_view text = split_words(parts_.pre_tokenizer, piece, place, storage, scratch.words);
    for (const Word place_of : scratch.words) {
      const std::string_view word = text.substr(place_of.begin, place_of.end - place_of.begin);
      const std::span<const TokenId> known = scratch.cache.find(word, text.size() - place_of.begin);
      if (!known.empty()) {
        ids.insert(ids.end(), known.begin(), known.end());
        continue;
      }
      scratch.ids.clear();
      parts_.model->encode_word(word, scratch.ids);
      ids.insert(ids.end(), scratch.ids.begin(), scratch.ids.end());
      scratch.cache.store(word, scratch.ids);
    }
  }

  HfTokenizerParts parts_;
  std::unordered_map<TokenId, std::string> tokens_;
  std::unordered_set<TokenId> added_;
  std::unordered_set<TokenId> special_;
  AddedTokenMatcher raw_matcher_;
  AddedTokenMatcher normalized_matcher_;
  std::int64_t vocab_size_ = 0;
  Cuts cuts_ = Cuts::kNone;
  mutable ScratchPool pool_;
};

}  // namespace

std::shared_ptr<const Tokenizer> make_hf_tokenizer(HfTokenizerParts parts) {
  return std::make_shared<HfTokenizer>(std::move(parts));
}

}  // namespace lockstep::data
