// A store whose waits end when somebody else says so: ranks that meet wait for each other, and one that is lost never
// comes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/elastic/store.h"

namespace lockstep::elastic {

class AbortableStore final : public KeyValueStore {
 public:
  // `aborted` is asked some times a second while get() and wait() wait, from any thread: the reason, or nothing. They
  // throw Fault{kAborted} then.
  AbortableStore(std::shared_ptr<KeyValueStore> store, std::function<std::optional<std::string>()> aborted)
      : store_(std::move(store)), aborted_(std::move(aborted)) {}

  void set(const std::string& key, std::string_view value) override { store_->set(key, value); }
  std::string get(const std::string& key, milliseconds timeout) override;
  std::optional<std::string> try_get(const std::string& key) override { return store_->try_get(key); }
  std::int64_t add(const std::string& key, std::int64_t delta) override { return store_->add(key, delta); }
  bool compare_set(const std::string& key, const std::optional<std::string>& expected,
                   std::string_view desired) override {
    return store_->compare_set(key, expected, desired);
  }
  void wait(const std::vector<std::string>& keys, milliseconds timeout) override;
  bool remove(const std::string& key) override { return store_->remove(key); }

 private:
  template <typename Call>
  auto in_slices(milliseconds timeout, const Call& call) -> decltype(call(timeout));

  std::shared_ptr<KeyValueStore> store_;
  std::function<std::optional<std::string>()> aborted_;
};

}  // namespace lockstep::elastic
