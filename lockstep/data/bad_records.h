// What is done about records and files that are wrong (`data.on_bad`): refused, or left out and counted.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/spec/data_policy.h"

namespace lockstep::data {

// Safe from many threads.
class BadRecords {
 public:
  explicit BadRecords(spec::OnBad policy) : policy_(policy) {}

  // Throws `error` again where bad records are refused; else counts it and keeps the first few messages.
  void meet(const UserError& error) {
    if (policy_ == spec::OnBad::kRefuse) throw error;
    const std::lock_guard lock(mutex_);
    ++count_;
    if (messages_.size() < kMessagesKept) messages_.emplace_back(error.what());
  }

  std::int64_t count() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  std::vector<std::string> messages() const {
    const std::lock_guard lock(mutex_);
    return messages_;
  }

 private:
  static constexpr std::size_t kMessagesKept = 8;
  const spec::OnBad policy_;
  mutable std::mutex mutex_;
  std::int64_t count_ = 0;
  std::vector<std::string> messages_;
};

}  // namespace lockstep::data
