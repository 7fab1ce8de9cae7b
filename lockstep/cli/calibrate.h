// Calibration as a function, for the verbs that need a Profile.
#pragma once

#include <cstdio>

#include "lockstep/cli/session.h"
#include "lockstep/cost/profile/profile.h"

namespace lockstep::cli {

struct CalibrationRequest {
  bool quick = false;
  bool cuda = false;   // one GPU instead of the placement's CPU ranks
  bool fused = false;  // of it the fused step alone
  // Of CPU ranks: the shapes of the job alone, whole and as the tensor-parallel ranks of its layout cut them.
  bool shapes_only = false;
};

// Measures with the placement's ranks, in the shapes of `job` among others. Blocks (some seconds when `quick`).
// Throws UserError when it fails or is stopped; exit code 4 when this build or machine lacks what it needs.
cost::Profile calibrate(const spec::Job& job, const Placement& placement, const CalibrationRequest& request,
                        std::FILE* display);

// One GPU, with the constants that price plans for its kind. Blocks for a minute when `quick`.
cost::Profile calibrate_gpu(bool quick, std::FILE* display);

void show_profile(std::FILE* out, const cost::Profile& profile);

}  // namespace lockstep::cli
