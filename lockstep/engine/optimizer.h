// Optimizers over FlatParameters: one fused pass per step (kernels/fused_optimizer.h has the formulas).
//
// AdamW and SGD equal torch.optim.AdamW and torch.optim.SGD. The learning rate comes with each step
// (engine/schedule.h), clipping and loss-scale removal come in as one factor on the gradient (engine/grad_clip.h,
// engine/loss_scaler.h).
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/parallel/flat_parameters.h"
#include "lockstep/spec/job.h"

namespace lockstep::engine {

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Updates master() and values() from gradient_factor * gradients(). Gradients stay as they are.
  virtual void step(double learning_rate, double gradient_factor = 1.0) = 0;
  // Steps taken so far (skipped ones are not steps).
  virtual std::int64_t steps() const = 0;

  // State by name: "optimizer.step" (int64, 0-dim) and, per parameter and with its shape, "optimizer.exp_avg.NAME",
  // "optimizer.exp_avg_sq.NAME" (AdamW) or "optimizer.momentum.NAME" (SGD with momentum). Tensors are views of the live
  // state. Weights and master weights are not part of it.
  virtual parallel::TensorMap state() const = 0;
  // Restores exactly; bad_input names the tensor that is missing or has the wrong shape.
  virtual void load_state(const parallel::TensorMap& state) = 0;
};

// Throws bad_input for settings that no optimizer has.
void check_optimizer(const spec::Optimizer& options);

// `parameters` must outlive the optimizer.
std::unique_ptr<Optimizer> make_optimizer(const spec::Optimizer& options, parallel::FlatParameters& parameters,
                                          parallel::DecayPolicy decay = parallel::DecayPolicy::kAll);

}  // namespace lockstep::engine
