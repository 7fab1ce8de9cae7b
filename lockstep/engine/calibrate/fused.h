// Calibration of the fused step of one GPU (engine/fused/step.h): whole steps of models of several widths, from
// which cost::fit_fused makes the planner's constants. Steps and not operators alone, because under its power limit a
// GPU that does one thing for a moment runs at other clocks than one that trains.
#pragma once

#include <vector>

#include "lockstep/cost/fused/profile.h"

namespace lockstep::engine {

// What is timed: Llamas from 512 to 4096 wide, every recompute, bf16 and fp8; the smaller half of them when `quick`.
// Figures are 0.
std::vector<cost::FusedPoint> fused_calibration_points(bool quick);

// The same with their figures, measured on the first GPU: median of some steps, peak memory, and operations of one more
// step that was timed call by call. What does not fit into the GPU's memory is left out. Some seconds per point.
// Nothing in builds without CUDA.
std::vector<cost::FusedPoint> measure_fused_points(const std::vector<cost::FusedPoint>& points);

}  // namespace lockstep::engine
