#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <queue>

#include "lockstep/base/counter_random.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/pre_tokenizer.h"
#include "lockstep/data/unicode.h"
#include "lockstep/data/word_model.h"

namespace lockstep::data {
namespace {

struct MergeRule {
  std::int32_t rank = 0;
  TokenId result = 0;
};

// Pairs of neighbours to merges. A flat table: the look-up is what merging consists of.
class RuleTable {
 public:
  explicit RuleTable(std::size_t rules = 0) {
    std::size_t size = 16;
    while (size < 2 * rules) size *= 2;
    slots_.resize(size);
  }

  // A later rule for the same pair replaces the earlier one. At most as many as were announced.
  void set(TokenId left, TokenId right, MergeRule rule) {
    Slot& slot = slots_[place_of(key_of(left, right))];
    slot = {key_of(left, right), rule};
  }

  const MergeRule* find(TokenId left, TokenId right) const {
    const Slot& slot = slots_[place_of(key_of(left, right))];
    return slot.key == kEmpty ? nullptr : &slot.rule;
  }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};  // no pair of ids, which are below 2^24
  struct Slot {
    std::uint64_t key = kEmpty;
    MergeRule rule = {};
  };

  static std::uint64_t key_of(TokenId left, TokenId right) {
    return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
  }

  // Where the key is, or the free slot where it would be.
  std::size_t place_of(std::uint64_t key) const {
    std::size_t place = mix(key) & (slots_.size() - 1);
    while (slots_[place].key != key && slots_[place].key != kEmpty) place = (place + 1) & (slots_.size() - 1);
    return place;
  }

  std::vector<Slot> slots_;
};

std::array<std::string, 256> make_stand_ins() {
  std::array<std::string, 256> stand_ins;
  char32_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable_byte = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    append_utf8(stand_ins[byte], printable_byte ? static_cast<char32_t>(byte) : next++);
  }
  return stand_ins;
}

class Bpe final : public WordModel {
 public:
  Bpe(BpeOptions options, const std::string& place) : options_(std::move(options)) {
    const auto& stand_ins = byte_stand_ins();
    for (int byte = 0; byte < 256; ++byte) {
      bytes_.emplace(decode_utf8(stand_ins[byte]).front(), static_cast<char>(byte));
      const auto found = options_.vocabulary.find(stand_ins[byte]);
      byte_ids_[byte] = found == options_.vocabulary.end() ? kMissing : found->second;
      const auto fallback = options_.vocabulary.find(fmt::format("<0x{:02X}>", byte));
      fallback_ids_[byte] = fallback == options_.vocabulary.end() ? kMissing : fallback->second;
    }
    if (options_.unknown) unknown_ = id_of(*options_.unknown, "the unknown token", place);
    std::int32_t rank = 0;
    rules_ = RuleTable(options_.merges.size());
    for (const Merge& merge : options_.merges) {
      const MergeRule rule{rank++, id_of(merge.left + merge.right, "the result of a merge", place)};
      const TokenId left = id_of(merge.left, "a merge", place);
      rules_.set(left, id_of(merge.right, "a merge", place), rule);
    }
    options_.merges.clear();
    options_.merges.shrink_to_fit();
  }

  void encode_word(std::string_view word, std::vector<TokenId>& ids) const override {
    if (options_.ignore_merges) {
      std::string spelled(options_.byte_level ? "" : word);
      for (const char byte : options_.byte_level ? word : "") {
        spelled += byte_stand_ins()[static_cast<unsigned char>(byte)];
      }
      if (const auto found = options_.vocabulary.find(spelled); found != options_.vocabulary.end()) {
        ids.push_back(found->second);
        return;
      }
    }
    if (word.size() <= kShortWord && options_.byte_level) return encode_short(word, ids);
    std::vector<Symbol> symbols = spell(word);
    merge_all(symbols);
    for (const Symbol& symbol : symbols) {
      if (symbol.alive) ids.push_back(symbol.id);
    }
  }

  void decode_token(std::string_view token, bool first, std::string& text) const override {
    if (!options_.byte_level) {
      return decode_characters(token, {options_.byte_fallback, first && options_.strip_first_space}, text);
    }
    std::string bytes;
    for (const char32_t c : decode_utf8(token)) {
      const auto found = bytes_.find(c);
      if (found == bytes_.end()) {  // not spelled in stand-ins: an added token
        text += token;
        return;
      }
      bytes.push_back(found->second);
    }
    text += bytes;
  }

 private:
  static constexpr TokenId kMissing = -1;
  static constexpr std::size_t kShortWord = 32;                      // bytes; longer ones are merged with a queue
  static constexpr std::size_t kLongestWord = std::size_t{1} << 30;  // places are ints

  // One symbol of the word in a doubly linked list over the vector.
  struct Symbol {
    TokenId id;
    int previous;
    int next;
    bool alive = true;
  };

  struct Candidate {
    std::int32_t rank;
    int place;
    TokenId result;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : place > other.place;
    }
  };
  using Queue = std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>>;

  TokenId id_of(const std::string& token, const char* what, const std::string& place) const {
    const auto found = options_.vocabulary.find(token);
    if (found != options_.vocabulary.end()) return found->second;
    throw bad_input(fmt::format("{} is `{}`, which the vocabulary lacks", what, printable(token)),
                    "take vocabulary and merges from the same tokenizer", {place});
  }

  static void append(std::vector<Symbol>& symbols, TokenId id) {
    const int place = static_cast<int>(symbols.size());
    symbols.push_back({id, place - 1, place + 1});
  }

  void append_unknown(std::vector<Symbol>& symbols) const {
    if (!unknown_) return;
    if (options_.fuse_unknown && !symbols.empty() && symbols.back().id == *unknown_) return;
    append(symbols, *unknown_);
  }

  void spell_bytes(std::string_view word, std::vector<Symbol>& symbols) const {
    for (const char byte : word) {
      const TokenId id = byte_ids_[static_cast<unsigned char>(byte)];
      id == kMissing ? append_unknown(symbols) : append(symbols, id);
    }
  }

  void spell_characters(std::string_view word, std::vector<Symbol>& symbols) const {
    const auto missing = [this](char byte) { return fallback_ids_[static_cast<unsigned char>(byte)] == kMissing; };
    for (std::size_t at = 0, next = 0; at < word.size(); at = next) {
      character_at(word, at, next);
      const std::string character(word.substr(at, next - at));  // short: no memory is allocated
      const auto found = options_.vocabulary.find(character);
      if (found != options_.vocabulary.end()) {
        append(symbols, found->second);
      } else if (options_.byte_fallback && std::none_of(character.begin(), character.end(), missing)) {
        for (const char byte : character) append(symbols, fallback_ids_[static_cast<unsigned char>(byte)]);
      } else {
        append_unknown(symbols);
      }
    }
  }

  std::vector<Symbol> spell(std::string_view word) const {
    if (word.size() > kLongestWord) {
      throw bad_input(fmt::format("a word of {} bytes without a break", word.size()), "is this text? check data.path");
    }
    std::vector<Symbol> symbols;
    symbols.reserve(word.size());
    options_.byte_level ? spell_bytes(word, symbols) : spell_characters(word, symbols);
    if (!symbols.empty()) symbols.back().next = -1;
    return symbols;
  }

  const MergeRule* rule_at(const std::vector<Symbol>& symbols, int place) const {
    const int next = symbols[place].next;
    if (next < 0) return nullptr;
    return rules_.find(symbols[place].id, symbols[next].id);
  }

  // As merge_all(), by looking at all pairs each time: faster for the few symbols of usual words.
  void encode_short(std::string_view word, std::vector<TokenId>& ids) const {
    constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();
    std::array<TokenId, kShortWord> symbols;
    std::array<MergeRule, kShortWord> rules;  // of symbol i with its neighbour
    std::size_t count = 0;
    for (const char byte : word) {
      const TokenId id = byte_ids_[static_cast<unsigned char>(byte)];
      if (id != kMissing) {
        symbols[count++] = id;
      } else if (unknown_ && !(options_.fuse_unknown && count > 0 && symbols[count - 1] == *unknown_)) {
        symbols[count++] = *unknown_;
      }
    }
    const auto look_up = [&](std::size_t i) {
      const MergeRule* rule = i + 1 < count ? rules_.find(symbols[i], symbols[i + 1]) : nullptr;
      rules[i] = rule == nullptr ? MergeRule{kNever, 0} : *rule;
    };
    for (std::size_t i = 0; i < count; ++i) look_up(i);
    while (count > 1) {
      std::size_t best = 0;
      for (std::size_t i = 1; i + 1 < count; ++i) {
        if (rules[i].rank < rules[best].rank) best = i;
      }
      if (rules[best].rank == kNever) break;
      symbols[best] = rules[best].result;
      --count;
      std::copy(symbols.begin() + best + 2, symbols.begin() + count + 1, symbols.begin() + best + 1);
      std::copy(rules.begin() + best + 2, rules.begin() + count + 1, rules.begin() + best + 1);
      look_up(best);
      if (best > 0) look_up(best - 1);
    }
    ids.insert(ids.end(), symbols.begin(), symbols.begin() + count);
  }

  // The merge of lowest rank first, the leftmost of equals, one at a time: O(n log n) for a word of n bytes.
  void merge_all(std::vector<Symbol>& symbols) const {
    Queue queue;
    const auto consider = [&](int place) {
      if (place < 0) return;
      if (const MergeRule* rule = rule_at(symbols, place)) queue.push({rule->rank, place, rule->result});
    };
    for (int place = 0; place < static_cast<int>(symbols.size()); ++place) consider(place);
    while (!queue.empty()) {
      const Candidate best = queue.top();
      queue.pop();
      Symbol& left = symbols[best.place];
      if (!left.alive) continue;
      const MergeRule* rule = rule_at(symbols, best.place);
      if (rule == nullptr || rule->result != best.result) continue;  // a neighbour was merged meanwhile
      Symbol& right = symbols[left.next];
      right.alive = false;
      left.id = rule->result;
      left.next = right.next;
      if (left.next >= 0) symbols[left.next].previous = best.place;
      consider(left.previous);
      consider(best.place);
    }
  }

  BpeOptions options_;
  std::array<TokenId, 256> byte_ids_{};
  std::array<TokenId, 256> fallback_ids_{};
  std::unordered_map<char32_t, char> bytes_;  // stand-in -> byte
  std::optional<TokenId> unknown_;
  RuleTable rules_;
};

}  // namespace

const std::array<std::string, 256>& byte_stand_ins() {
  static const std::array<std::string, 256> stand_ins = make_stand_ins();
  return stand_ins;
}

std::shared_ptr<const WordModel> make_bpe(BpeOptions options, const std::string& place) {
  return std::make_shared<Bpe>(std::move(options), place);
}

}  // namespace lockstep::data
