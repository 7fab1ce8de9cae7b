// The stores of one home folder as one thread reads them.
#pragma once

#include <filesystem>
#include <memory>

#include "lockstep/telemetry/run_store.h"
#include "lockstep/telemetry/study_store.h"

namespace lockstep::serve {

// Not thread-safe: every worker has its own.
class Stores {
 public:
  explicit Stores(std::filesystem::path home) : home_(std::move(home)) {}

  const std::filesystem::path& home() const { return home_; }
  // Opened at the first call, and again when runs.db was made or replaced since. Throws UserError.
  telemetry::RunStore& runs();
  // nullptr where no study was recorded.
  telemetry::StudyStore* studies();

 private:
  // What tells one runs.db from another; 0: there is none.
  std::uint64_t identity() const;
  void refresh();

  std::filesystem::path home_;
  std::uint64_t opened_ = 0;
  std::unique_ptr<telemetry::RunStore> runs_;
  std::unique_ptr<telemetry::StudyStore> studies_;
};

}  // namespace lockstep::serve
