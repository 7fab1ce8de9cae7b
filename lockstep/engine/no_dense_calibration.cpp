// Builds without CUDA: there is no fused step to measure.
#include "lockstep/engine/calibration_dense.h"

namespace lockstep::engine {

std::vector<cost::DensePoint> measure_dense_points(const std::vector<cost::DensePoint>&) { return {}; }

}  // namespace lockstep::engine
