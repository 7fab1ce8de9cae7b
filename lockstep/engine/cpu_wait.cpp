#include "lockstep/engine/cpu_wait.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

namespace lockstep::engine {

// "ran_ns waited_ns slices" (Documentation/scheduler/sched-stats.rst).
CpuWait::CpuWait() : file_(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {}

std::optional<double> CpuWait::seconds() const {
  std::array<char, 96> text{};
  if (!file_ || ::pread(file_.get(), text.data(), text.size() - 1, 0) <= 0) return std::nullopt;
  char* rest = nullptr;
  std::strtoull(text.data(), &rest, 10);
  return 1e-9 * static_cast<double>(std::strtoull(rest, nullptr, 10));
}

}  // namespace lockstep::engine
