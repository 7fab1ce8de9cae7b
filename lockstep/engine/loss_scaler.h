// Dynamic loss scaling for fp16, with the rule of torch.cuda.amp.GradScaler.
#pragma once

#include <cstdint>

#include "lockstep/parallel/tensor_map.h"

namespace lockstep::engine {

struct LossScalerOptions {
  bool enabled = false;  // disabled: the scale is 1 and update() changes nothing
  double initial_scale = 65536.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;  // steps in a row without overflow before the scale grows
};

// Not thread-safe. All ranks call update() with the same argument and so keep the same scale.
class LossScaler {
 public:
  explicit LossScaler(const LossScalerOptions& options = {});

  // Multiply the loss by this before backward.
  double scale() const { return scale_; }
  // After each step. False gradient (overflow): the scale backs off and the step must be skipped.
  void update(bool gradient_finite);
  std::int64_t skipped_steps() const { return skipped_; }

  // "loss_scaler.state": fp64 [3] = scale, steps since the last change, skipped steps.
  parallel::TensorMap state() const;
  void load_state(const parallel::TensorMap& state);

 private:
  LossScalerOptions options_;
  double scale_ = 1.0;
  std::int64_t good_steps_ = 0;
  std::int64_t skipped_ = 0;
};

}  // namespace lockstep::engine
