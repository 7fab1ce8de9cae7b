// Clipping by global norm, folded into the optimizer's pass as a factor.
#pragma once

#include "lockstep/parallel/flat_parameters.h"

namespace lockstep::engine {

struct GradientNorm {
  double norm = 0.0;    // of the true gradient: after removal of the loss scale, before clipping
  double factor = 1.0;  // what to multiply the stored gradient by: unscaling and clipping together
  bool finite = true;   // false: the gradient has NaN or infinity; the step should be skipped
};

// What to multiply a gradient of this norm by that still carries the loss scale: unscaling and clipping together.
double clip_factor(double norm, double clip_norm, double loss_scale);

// Norm over the reduced flat gradient. `loss_scale` is what the loss was multiplied by; `clip_norm` 0 means no
// clipping. The factor equals torch.nn.utils.clip_grad_norm_: min(1, clip_norm / (norm + 1e-6)), times 1 / loss_scale.
// Since every rank holds the same reduced gradient, every rank gets the same bits.
GradientNorm gradient_norm(const parallel::FlatParameters& parameters, double clip_norm, double loss_scale = 1.0);

}  // namespace lockstep::engine
