// How long a thread was ready to run and had no core: what the kernel's scheduler counts for it.
#pragma once

#include <optional>

#include "lockstep/base/file.h"

namespace lockstep::engine {

// Belongs to the thread that made it. A microsecond a call.
class CpuWait {
 public:
  CpuWait();
  // So far; nothing where the kernel does not count it.
  std::optional<double> seconds() const;

 private:
  UniqueFd file_;  // none: the kernel has no such file
};

}  // namespace lockstep::engine
