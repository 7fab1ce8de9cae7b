// Calibration: measures a Profile of this machine. Every rank of the job calls measure_profile() at the same time, and
// each group of measurements starts at a barrier, so that ranks contend for cores, caches and memory as they do in
// training.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/cost/profile/profile.h"
#include "lockstep/cost/step_time.h"

namespace lockstep::engine {

enum class CalibrationDevice { kCpu, kCuda };

struct CalibrationOptions {
  // kCuda: the first visible GPU, one rank. environment_error where this libtorch has no CUDA or finds no GPU.
  CalibrationDevice device = CalibrationDevice::kCpu;
  bool fused_only = false;       // kCuda: the steps of calibration_fused.h and nothing else
  bool quick = false;            // about 8 s of wall time; otherwise a minute or two
  std::int64_t threads = 0;      // intra-op threads of this rank; 0: leave libtorch as it is
  double timeout_seconds = 120;  // of every collective
  std::vector<spec::Precision> precisions = {spec::Precision::kFp32};  // the first is what the checks train in
  // Shapes of these workloads are measured besides the general sweep: prices them without interpolation.
  std::vector<cost::Workload> workloads;
  // Above 0: these shapes alone, whole and as so many tensor-parallel ranks cut them, and instead of the usual check
  // models shallower and deeper ones of the workloads' widths; what other programs take of the cores is discounted
  // (Sampler::discount_others). CPU only; some 20 s.
  std::int64_t focus = 0;
  std::string backend;           // name of the communicator's backend, for the provenance
  std::string lockstep_version;  // for the provenance
};

// Collective: call on every rank with the same options. Blocks for the time above. Every rank returns the same Profile
// (figures are the mean over ranks; collectives the slowest rank). Throws comm's Faults.
cost::Profile measure_profile(comm::Communicator& communicator, const CalibrationOptions& options);

}  // namespace lockstep::engine
