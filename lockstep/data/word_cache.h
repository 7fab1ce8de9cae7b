// The ids of words that came before. Text repeats its words, so that most of them are found here instead of merged.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/data/tokenizer.h"

namespace lockstep::data {

// For one thread. Words of up to 16 bytes and 3 ids lie in a table of two slots per bucket, one cache line each, where
// the last come stay; longer ones in a map that is emptied when it is full.
class WordCache {
 public:
  static constexpr std::size_t kLongestWord = 64;  // of the map: longer ones are seldom met twice

  WordCache() : buckets_(kBuckets) {}

  // The ids of `word` (not empty), valid until the next store(); none when it is not known. `readable` bytes from the
  // word's first one on may be read.
  std::span<const TokenId> find(std::string_view word, std::size_t readable) {
    if (word.size() > sizeof(Slot::key)) return find_long(word);
    const Key key = key_of(word, readable);
    for (const Slot& slot : bucket_of(key).slots) {
      if (slot.key == key && slot.size == word.size() && slot.count > 0) return {slot.ids, slot.count};
    }
    return long_words_.empty() ? std::span<const TokenId>() : find_long(word);
  }

  void store(std::string_view word, std::span<const TokenId> ids) {
    if (ids.empty() || word.size() > kLongestWord) return;
    if (word.size() > sizeof(Slot::key) || ids.size() > kIdsOfSlot) {
      if (long_words_.size() >= kLongWords) long_words_.clear();
      long_words_.emplace(std::string(word), std::vector<TokenId>(ids.begin(), ids.end()));
      return;
    }
    const Key key = key_of(word, word.size());
    Bucket& bucket = bucket_of(key);
    bucket.slots[1] = bucket.slots[0];
    Slot& slot = bucket.slots[0];
    slot.key = key;
    slot.size = static_cast<std::uint8_t>(word.size());
    slot.count = static_cast<std::uint8_t>(ids.size());
    std::copy(ids.begin(), ids.end(), slot.ids);
  }

 private:
  static constexpr std::size_t kBuckets = std::size_t{1} << 15;
  static constexpr std::size_t kLongWords = 50'000;
  static constexpr std::size_t kIdsOfSlot = 3;

  struct Key {
    std::uint64_t low = 0, high = 0;
    bool operator==(const Key&) const = default;
  };
  struct Slot {
    Key key;
    std::uint8_t size = 0;
    std::uint8_t count = 0;
    TokenId ids[kIdsOfSlot] = {};
  };
  struct alignas(64) Bucket {
    Slot slots[2];
  };
  static_assert(sizeof(Slot) == 32 && sizeof(Bucket) == 64);

  static Key key_of(std::string_view word, std::size_t readable) {
    Key key;
    if (readable < sizeof key) {
      std::memcpy(&key, word.data(), word.size());
      return key;
    }
    std::memcpy(&key, word.data(), sizeof key);
    const std::size_t bits = word.size() * 8;
    if (bits < 64) {
      key.low &= (std::uint64_t{1} << bits) - 1;
      key.high = 0;
    } else if (bits < 128) {
      key.high &= (std::uint64_t{1} << (bits - 64)) - 1;
    }
    return key;
  }

  Bucket& bucket_of(const Key& key) {
    std::uint64_t hash = key.low * 0x9E3779B97F4A7C15ULL;
    hash ^= (key.high ^ (hash >> 32)) * 0xC2B2AE3D27D4EB4FULL;
    return buckets_[(hash >> 40) & (kBuckets - 1)];
  }

  std::span<const TokenId> find_long(std::string_view word) const {
    if (word.size() > kLongestWord) return {};
    const auto found = long_words_.find(word);
    if (found == long_words_.end()) return {};
    return found->second;
  }

  struct Hash {
    using is_transparent = void;  // NOLINT(readability-identifier-naming): the standard library looks for this name
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  std::vector<Bucket> buckets_;
  std::unordered_map<std::string, std::vector<TokenId>, Hash, std::equal_to<>> long_words_;
};

}  // namespace lockstep::data
