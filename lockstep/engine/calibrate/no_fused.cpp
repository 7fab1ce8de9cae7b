// Builds without CUDA: there is no fused step to measure.
#include "lockstep/engine/calibrate/fused.h"

namespace lockstep::engine {

std::vector<cost::FusedPoint> measure_fused_points(const std::vector<cost::FusedPoint>&) { return {}; }

}  // namespace lockstep::engine
