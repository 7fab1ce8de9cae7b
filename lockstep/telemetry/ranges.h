// Ranges for a profiler that watches this process (NVTX): spans of a rank's own thread become ranges too.
#pragma once

namespace lockstep::telemetry {

// As nvtxRangePushA and nvtxRangePop; what they return is not looked at.
struct RangeFunctions {
  int (*push)(const char* name) = nullptr;
  int (*pop)() = nullptr;
};

// From now on, for all threads; while no span is open. Both null: no ranges.
void show_ranges(RangeFunctions functions);

}  // namespace lockstep::telemetry
