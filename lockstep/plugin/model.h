// Model: what is trained, as a chain of units. Lockstep runs it unit by unit, so that weights can come and go with a
// unit (ZeRO-3), activations be computed again (recompute), and a pipeline be cut between any two units that hand on
// one tensor.
//
//   struct Block : lockstep::plugin::Unit {
//     explicit Block(std::int64_t width) : inner(register_module("inner", torch::nn::Linear(width, width))) {}
//     Stream forward(const Stream& x, const Batch&) override { return {x[0] + torch::relu(inner(x[0]))}; }
//     torch::nn::Linear inner;
//   };
//   struct Net : lockstep::plugin::Model {
//     explicit Net(Options& options) {
//       const std::int64_t layers = options.integer("layers", 2, 1, 1000);
//       for (std::int64_t i = 0; i < layers; ++i) add_unit("layers." + std::to_string(i), std::make_shared<Block>(64));
//     }
//   };
//   LOCKSTEP_REGISTER_MODEL("net", Net)
//
// Parameters and buffers are those that the units register; their names are the unit's, a dot, and torch's own. The
// constructor runs on every rank with torch's generator seeded by the job's seed, so it draws the same weights
// everywhere. Lockstep then changes the type of weights and buffers, and frees those of other ranks: keep modules, not
// tensors.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/plugin/loss.h"
#include "lockstep/plugin/options.h"

namespace lockstep::plugin {

// What units hand on.
using Stream = std::vector<torch::Tensor>;

// The micro-batch that is computed.
struct Batch {
  Stream inputs;         // as the data set gives them, real numbers in the model's type, samples first
  torch::Tensor target;  // as the data set gives it
  bool training = true;  // false: evaluation
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t first_index = 0;  // of the first sample inside the batch of the step
  // Dropout whose mask depends on (seed, step, place in the batch, site) alone: the same under every layout, and when
  // a unit is computed again. `site` tells the model's dropouts apart. Nothing outside training.
  std::function<torch::Tensor(const torch::Tensor& x, double probability, std::uint32_t site)> dropout;
};

// A part of the model that runs by itself.
class Unit : public torch::nn::Module {
 public:
  // `x` is what the unit before returned; the first one's is Batch::inputs. It does not write into x. A pipeline can
  // begin where one tensor of real numbers enters, samples first.
  virtual Stream forward(const Stream& x, const Batch& batch) = 0;
};

class Model {
 public:
  Model() = default;
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Of what the last unit returned. Not called where the job names a loss.
  virtual Loss loss(const Stream& output, const Batch& batch) {
    static_cast<void>(output);
    static_cast<void>(batch);
    throw std::logic_error("the model has no loss of its own: name one in model.loss");
  }
  // What Loss::count counts.
  virtual Counted counted() const { return Counted::kSamples; }

  const std::vector<std::pair<std::string, std::shared_ptr<Unit>>>& units() const { return units_; }

 protected:
  // Units run in the order in which they were added. The name may have dots. A module may serve several units (tied
  // weights); then there are no pipelines.
  template <class U>
  std::shared_ptr<U> add_unit(std::string name, std::shared_ptr<U> unit) {
    units_.emplace_back(std::move(name), unit);
    return unit;
  }

 private:
  std::vector<std::pair<std::string, std::shared_ptr<Unit>>> units_;
};

}  // namespace lockstep::plugin
