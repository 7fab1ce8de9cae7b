#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <mutex>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/secret.h"
#include "lockstep/elastic/store.h"
#include "lockstep/elastic/store_wire.h"

namespace lockstep::elastic {

void check_key(const std::string& key) {
  if (key.empty() || key.size() > kMaxKeyBytes) {
    throw bad_input(fmt::format("store key of {} bytes", key.size()), fmt::format("use 1 to {} bytes", kMaxKeyBytes));
  }
}

void check_keys(const std::vector<std::string>& keys) {
  if (keys.size() > kMaxKeysPerWait) {
    throw bad_input(fmt::format("wait for {} store keys at once", keys.size()),
                    fmt::format("wait for at most {}", kMaxKeysPerWait));
  }
  for (const auto& key : keys) check_key(key);
}

void StoreTable::set(const std::string& key, std::string_view value) {
  check_key(key);
  if (value.size() > kMaxValueBytes) {
    throw bad_input(fmt::format("store value of {} bytes for \"{}\"", value.size(), key),
                    fmt::format("use at most {} bytes", kMaxValueBytes));
  }
  const auto found = entries_.find(key);
  const std::size_t before = found == entries_.end() ? 0 : key.size() + found->second.size();
  const std::size_t after = bytes_ - before + key.size() + value.size();
  if (after > kMaxStoreBytes) {
    throw bad_input(fmt::format("the rendezvous store is full ({} bytes)", kMaxStoreBytes), "remove keys after use");
  }
  entries_[key] = value;
  bytes_ = after;
}

const std::string* StoreTable::find(const std::string& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

std::int64_t StoreTable::add(const std::string& key, std::int64_t delta) {
  check_key(key);
  std::int64_t value = 0;
  if (const std::string* text = find(key)) {
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc() || end != text->data() + text->size()) {
      throw bad_input(fmt::format("store key \"{}\" does not hold a number", key), "add only to counters");
    }
  }
  if (__builtin_add_overflow(value, delta, &value)) {
    throw bad_input(fmt::format("store counter \"{}\" overflows", key), "use smaller steps");
  }
  set(key, std::to_string(value));
  return value;
}

bool StoreTable::compare_set(const std::string& key, const std::optional<std::string>& expected,
                             std::string_view desired) {
  const std::string* current = find(key);
  if (expected.has_value() != (current != nullptr)) return false;
  if (current != nullptr && *current != *expected) return false;
  set(key, desired);
  return true;
}

bool StoreTable::remove(const std::string& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return false;
  bytes_ -= key.size() + found->second.size();
  entries_.erase(found);
  return true;
}

struct MemoryStore::State {
  std::mutex mutex;
  std::condition_variable changed;
  StoreTable table;
};

MemoryStore::MemoryStore() : state_(std::make_unique<State>()) {}
MemoryStore::~MemoryStore() = default;

void MemoryStore::set(const std::string& key, std::string_view value) {
  const std::lock_guard lock(state_->mutex);
  state_->table.set(key, value);
  state_->changed.notify_all();
}

std::string MemoryStore::get(const std::string& key, milliseconds timeout) {
  check_key(key);
  std::unique_lock lock(state_->mutex);
  const auto present = [&] { return state_->table.find(key) != nullptr; };
  if (!state_->changed.wait_for(lock, timeout, present)) {
    throw Fault(FaultKind::kTimeout, -1,
                fmt::format("store key \"{}\" did not appear within {}", key, timeout.count()) + " ms");
  }
  return *state_->table.find(key);
}

std::optional<std::string> MemoryStore::try_get(const std::string& key) {
  check_key(key);
  const std::lock_guard lock(state_->mutex);
  const std::string* value = state_->table.find(key);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::int64_t MemoryStore::add(const std::string& key, std::int64_t delta) {
  const std::lock_guard lock(state_->mutex);
  const std::int64_t value = state_->table.add(key, delta);
  state_->changed.notify_all();
  return value;
}

bool MemoryStore::compare_set(const std::string& key, const std::optional<std::string>& expected,
                              std::string_view desired) {
  const std::lock_guard lock(state_->mutex);
  const bool stored = state_->table.compare_set(key, expected, desired);
  if (stored) state_->changed.notify_all();
  return stored;
}

void MemoryStore::wait(const std::vector<std::string>& keys, milliseconds timeout) {
  check_keys(keys);
  std::unique_lock lock(state_->mutex);
  const std::string* missing = nullptr;
  const auto present = [&] {
    for (const auto& key : keys) {
      missing = &key;
      if (state_->table.find(key) == nullptr) return false;
    }
    return true;
  };
  if (!state_->changed.wait_for(lock, timeout, present)) {
    throw Fault(FaultKind::kTimeout, -1,
                fmt::format("store key \"{}\" did not appear within {} ms", *missing, timeout.count()));
  }
}

bool MemoryStore::remove(const std::string& key) {
  check_key(key);
  const std::lock_guard lock(state_->mutex);
  return state_->table.remove(key);
}

PrefixStore::PrefixStore(std::shared_ptr<KeyValueStore> store, std::string prefix)
    : store_(std::move(store)), prefix_(std::move(prefix)) {}

void PrefixStore::set(const std::string& key, std::string_view value) { store_->set(prefix_ + key, value); }
std::string PrefixStore::get(const std::string& key, milliseconds timeout) {
  return store_->get(prefix_ + key, timeout);
}
std::optional<std::string> PrefixStore::try_get(const std::string& key) { return store_->try_get(prefix_ + key); }
std::int64_t PrefixStore::add(const std::string& key, std::int64_t delta) { return store_->add(prefix_ + key, delta); }
bool PrefixStore::compare_set(const std::string& key, const std::optional<std::string>& expected,
                              std::string_view desired) {
  return store_->compare_set(prefix_ + key, expected, desired);
}
void PrefixStore::wait(const std::vector<std::string>& keys, milliseconds timeout) {
  std::vector<std::string> full;
  full.reserve(keys.size());
  for (const auto& key : keys) full.push_back(prefix_ + key);
  store_->wait(full, timeout);
}
bool PrefixStore::remove(const std::string& key) { return store_->remove(prefix_ + key); }

std::string token_from_environment() {
  const char* token = std::getenv("LOCKSTEP_TOKEN");
  return token == nullptr ? std::string() : std::string(token);
}

std::string make_token() { return random_hex(16); }

}  // namespace lockstep::elastic
