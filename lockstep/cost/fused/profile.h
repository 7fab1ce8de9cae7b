// The part of a Profile that prices the fused step of one GPU: the steps that were measured, and the constants fitted
// to them. Values only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/base/json.h"
#include "lockstep/cost/fused/time.h"
#include "lockstep/spec/cluster.h"
#include "lockstep/spec/job.h"

namespace lockstep::cost {

// One training step that was timed.
struct FusedPoint {
  spec::Model model;
  spec::Precision precision = spec::Precision::kBf16;  // bf16 or fp8
  bool bf16_states = false;
  plan::Recompute recompute = plan::Recompute::kNone;
  std::int64_t micro = 1, accumulation = 1, sequence_length = 0;
  double seconds = 0;     // median
  double spread = 0;      // relative: half the distance of the quartiles over the median
  double peak_bytes = 0;  // arena and libtorch's allocator
  struct Operation {
    std::string name;
    double seconds = 0;  // of all its calls, in a step that was timed call by call
  };
  std::vector<Operation> operations;

  FusedRun run() const;
  // "24x1024, 16 x 2048, selective, bf16"
  std::string name() const;
};

struct FusedProfile {
  std::string date;      // ISO 8601, UTC; the steps may have been measured after the profile's tables
  std::string software;  // "libtorch 2.11.0, Lockstep 0.1.0"
  FusedConstants constants;
  double time_sigma = 0.1;     // standard deviation of log(measured / predicted) where a point is left out of the fit
  double memory_sigma = 0.01;  // the same of the peak; nothing of it is fitted
  std::vector<FusedPoint> points;
};

// Constants by least squares on logarithms: operations against their formulas, then whole steps against their sum.
// Points left out one model at a time give the sigmas. Throws UserError (exit code 4) where there are fewer than three.
FusedProfile fit_fused(FusedProfile measured, const spec::Device& device);

nlohmann::json fused_to_json(const FusedProfile& profile);
FusedProfile read_fused(JsonReader reader);

}  // namespace lockstep::cost
