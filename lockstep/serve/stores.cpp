#include "lockstep/serve/stores.h"

#include <sys/stat.h>

#include "lockstep/base/error.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::serve {

std::uint64_t Stores::identity() const {
  struct stat status {};
  if (::stat(telemetry::store_file(home_).c_str(), &status) != 0) return 0;
  return static_cast<std::uint64_t>(status.st_ino) * 31 + static_cast<std::uint64_t>(status.st_dev) + 1;
}

void Stores::refresh() {
  const std::uint64_t now = identity();
  if (now == opened_) return;
  runs_.reset();
  studies_.reset();
  opened_ = now;
}

telemetry::RunStore& Stores::runs() {
  refresh();
  if (!runs_) runs_ = telemetry::open_run_store(home_);
  return *runs_;
}

telemetry::StudyStore* Stores::studies() {
  refresh();
  if (!studies_) {
    try {
      studies_ = telemetry::open_study_store(home_, false);
    } catch (const UserError& error) {
      if (error.code() != ExitCode::kEnvironment) throw;
      return nullptr;
    }
  }
  return studies_.get();
}

}  // namespace lockstep::serve
