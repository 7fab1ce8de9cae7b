#include "lockstep/engine/grad_clip.h"

#include <algorithm>
#include <cmath>

#include "lockstep/kernels/fused_optimizer.h"

namespace lockstep::engine {

double clip_factor(double norm, double clip_norm, double loss_scale) {
  constexpr double kEpsilon = 1e-6;  // as torch.nn.utils.clip_grad_norm_
  const double clip = clip_norm > 0.0 ? std::min(1.0, clip_norm / (norm + kEpsilon)) : 1.0;
  return clip / loss_scale;
}

GradientNorm gradient_norm(const parallel::FlatParameters& parameters, double clip_norm, double loss_scale) {
  GradientNorm result;
  result.norm = std::sqrt(kernels::squared_norm(parameters.gradients())) / loss_scale;
  result.finite = std::isfinite(result.norm);
  result.factor = clip_factor(result.finite ? result.norm : 0.0, clip_norm, loss_scale);
  return result;
}

}  // namespace lockstep::engine
