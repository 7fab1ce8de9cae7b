// `lockstep demo --chaos`: the same small run twice, undisturbed and with a rank that is killed, and what came of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/telemetry/run_store.h"

namespace lockstep::cli {

// How far two runs agree, step by step, to the last bit.
struct SameLosses {
  std::int64_t steps = 0, same = 0;
  bool all() const { return steps > 0 && same == steps; }
};
SameLosses compare_losses(const std::vector<telemetry::Point>& a, const std::vector<telemetry::Point>& b);

// `overrides` of the job's fields; returns the exit code: 1 when the two runs differ.
int demo_chaos(const std::vector<std::string>& overrides, bool json);

}  // namespace lockstep::cli
