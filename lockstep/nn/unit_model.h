// UnitModel: a model that runs unit by unit. A unit has an autograd graph of its own, from detached inputs to its
// outputs; whoever runs the units (parallel/chunk.h) decides between them: gather and free weights, keep activations or
// compute them again, hand the stream to the next stage of a pipeline (docs/decisions/0005-units-and-placements.md).
//
//   Stream x = model.first_stream(batch);
//   for (std::size_t i = 0; i < model.unit_count(); ++i) x = model.run_unit(i, x, batch).stream;   // the last: .loss
//
// A model of several units knows: its parameters (declared as nn::Layer does), which unit uses which of them, what a
// unit computes, and, in the last one, the loss. One unit is a TrainableModel, which needs none of this.
#pragma once

#include <optional>
#include <vector>

#include "lockstep/nn/model.h"
#include "lockstep/plan/layout.h"

namespace lockstep::nn {

// What units hand on: one tensor in language models; in others every value that lives across the cut.
using Stream = std::vector<torch::Tensor>;

// The micro-batch, which a unit may read beside the stream.
struct UnitBatch {
  const torch::Tensor& input;
  const torch::Tensor& target;
  const ForwardContext& context;
};

struct UnitOutput {
  Stream stream = {};                             // for the next unit
  torch::Tensor auxiliary = {};                   // see LossResult::auxiliary
  std::optional<LossResult> loss = std::nullopt;  // of the unit that ends the model
};

class UnitModel : public TrainableModel {
 public:
  // The units of the part of the model that is held here (BuildOptions::part).
  virtual std::size_t unit_count() const = 0;
  // Parameters that the unit uses; a parameter may serve several units. Every parameter serves one.
  virtual std::vector<torch::Tensor> unit_parameters(std::size_t unit) const = 0;
  // Whether the last unit here is the model's last.
  virtual bool ends_in_loss() const = 0;
  // What the first unit of the model reads.
  virtual Stream first_stream(const UnitBatch& batch) const { return {batch.input}; }
  // Tensors of the stream that carry a gradient are leaves; the unit may not write into them.
  virtual UnitOutput run_unit(std::size_t unit, const Stream& x, const UnitBatch& batch) = 0;
  // The last unit without its loss: logits.
  virtual torch::Tensor predict_unit(std::size_t unit, const Stream& x, const UnitBatch& batch) = 0;
  // Whether the unit's activations are computed again in backward.
  virtual bool recomputes(std::size_t unit, plan::Recompute recompute) const = 0;
  // Whether units exchange something between ranks. If not, a rank without samples computes nothing.
  virtual bool has_exchanges() const { return true; }

 protected:
  using TrainableModel::TrainableModel;
};

}  // namespace lockstep::nn
