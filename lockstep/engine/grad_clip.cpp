#include "lockstep/engine/grad_clip.h"

#include <algorithm>
#include <cmath>

#include "lockstep/kernels/fused_optimizer.h"

namespace lockstep::engine {

GradientNorm gradient_norm(const parallel::FlatParameters& parameters, double clip_norm, double loss_scale) {
  constexpr double kEpsilon = 1e-6;  // as torch.nn.utils.clip_grad_norm_
  GradientNorm result;
  result.norm = std::sqrt(kernels::squared_norm(parameters.gradients())) / loss_scale;
  result.finite = std::isfinite(result.norm);
  result.factor = 1.0 / loss_scale;
  if (clip_norm > 0.0 && result.finite) result.factor *= std::min(1.0, clip_norm / (result.norm + kEpsilon));
  return result;
}

}  // namespace lockstep::engine
