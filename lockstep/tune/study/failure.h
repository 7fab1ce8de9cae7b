// Why a program that was to be measured failed, from how it ended and what it printed.
#pragma once

#include <deque>
#include <string>

#include "lockstep/base/process.h"
#include "lockstep/tune/study/trial.h"

namespace lockstep::tune {

struct Failure {
  Outcome outcome = Outcome::kCrash;
  std::string message;  // one line: what it printed about it, else how it ended
};

// Which memory a failure that ran out of memory speaks of.
enum class MemoryKind { kUnknown, kDevice, kHost };
MemoryKind memory_kind(const std::string& message);

// For programs that ended by themselves without a measurement. Looks, in this order, at what it printed (texts of
// PyTorch, CUDA, NCCL, Python, the kernel and argparse), at the signal (SIGKILL that we did not send is the kernel's
// out-of-memory killer) and at the exit code (2: usage, so the configuration is refused; 3: lockstep's "does not fit").
Failure classify_failure(const ExitStatus& status, const std::deque<std::string>& output);

}  // namespace lockstep::tune
