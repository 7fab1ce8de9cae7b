#include "lockstep/engine/optimizer.h"

#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/kernels/fused_optimizer.h"

namespace lockstep::engine {
namespace {

using parallel::FlatParameters;
using parallel::TensorMap;

const std::string kStep = "optimizer.step";

// What both optimizers share: the step count, and which arrays a kernel works on.
class FlatOptimizer : public Optimizer {
 public:
  FlatOptimizer(const spec::Optimizer& options, FlatParameters& parameters, parallel::DecayPolicy decay)
      : options_(options), parameters_(parameters) {
    if (options.weight_decay != 0.0) decay_ = parameters.decay_ranges(decay);
  }

  std::int64_t steps() const override { return steps_; }

  TensorMap state() const override {
    TensorMap result{{kStep, torch::tensor(steps_, torch::TensorOptions().dtype(torch::kInt64))}};
    for (const auto& [name, flat] : slots()) result.merge(parameters_.views(flat, name));
    return result;
  }

  void load_state(const TensorMap& state) override {
    const auto found = state.find(kStep);
    if (found == state.end() || found->second.numel() != 1 || found->second.scalar_type() != torch::kInt64) {
      throw bad_input("tensor " + kStep + " is missing or malformed", "use a checkpoint of the same job");
    }
    const std::int64_t steps = found->second.item<std::int64_t>();
    if (steps < 0) throw bad_input("tensor " + kStep + " is negative", "use an undamaged checkpoint");
    for (auto& [name, flat] : slots()) parameters_.load(flat, state, name);
    steps_ = steps;
  }

 protected:
  // State arrays with the prefix of their names; handles of the live tensors.
  virtual std::vector<std::pair<std::string, torch::Tensor>> slots() const = 0;

  torch::Tensor new_slot() const { return torch::zeros_like(parameters_.master()); }

  kernels::OptimizerArrays arrays(const torch::Tensor& first, const torch::Tensor& second) const {
    return {parameters_.master(), parameters_.gradients(), first, second,
            parameters_.has_master() ? parameters_.values() : torch::Tensor()};
  }

  spec::Optimizer options_;
  FlatParameters& parameters_;
  std::vector<kernels::ElementRange> decay_;
  std::int64_t steps_ = 0;
};

class AdamW : public FlatOptimizer {
 public:
  AdamW(const spec::Optimizer& options, FlatParameters& parameters, parallel::DecayPolicy decay)
      : FlatOptimizer(options, parameters, decay), first_(new_slot()), second_(new_slot()) {}

  void step(double learning_rate, double gradient_factor) override {
    ++steps_;
    kernels::adamw(arrays(first_, second_), decay_,
                   {learning_rate, options_.beta1, options_.beta2, options_.epsilon, options_.weight_decay, steps_,
                    gradient_factor});
  }

 protected:
  std::vector<std::pair<std::string, torch::Tensor>> slots() const override {
    return {{"optimizer.exp_avg.", first_}, {"optimizer.exp_avg_sq.", second_}};
  }

 private:
  torch::Tensor first_;
  torch::Tensor second_;
};

class Sgd : public FlatOptimizer {
 public:
  Sgd(const spec::Optimizer& options, FlatParameters& parameters, parallel::DecayPolicy decay)
      : FlatOptimizer(options, parameters, decay) {
    if (options.momentum != 0.0) momentum_ = new_slot();
  }

  void step(double learning_rate, double gradient_factor) override {
    ++steps_;
    kernels::sgd(arrays(momentum_, {}), decay_,
                 {learning_rate, options_.momentum, options_.weight_decay, options_.nesterov, gradient_factor});
  }

 protected:
  std::vector<std::pair<std::string, torch::Tensor>> slots() const override {
    if (!momentum_.defined()) return {};
    return {{"optimizer.momentum.", momentum_}};
  }

 private:
  torch::Tensor momentum_;
};

}  // namespace

void check_optimizer(const spec::Optimizer& options) {
  const auto outside = [](double value) { return !(value >= 0.0 && value < 1.0); };
  if (outside(options.beta1)) throw bad_input("optimizer.beta1 is outside [0, 1)", "0.9 is usual");
  if (outside(options.beta2)) throw bad_input("optimizer.beta2 is outside [0, 1)", "0.95 to 0.999 is usual");
  if (outside(options.momentum)) throw bad_input("optimizer.momentum is outside [0, 1)", "0.9 is usual");
  if (!(options.epsilon > 0.0)) throw bad_input("optimizer.epsilon is not above 0", "1e-8 is usual");
  if (!(options.weight_decay >= 0.0)) throw bad_input("optimizer.weight_decay is negative", "use 0 for none");
  if (options.kind == spec::OptimizerKind::kSgd && options.nesterov && options.momentum == 0.0) {
    throw bad_input("optimizer.nesterov needs momentum", "set momentum: 0.9, or nesterov: false");
  }
}

std::unique_ptr<Optimizer> make_optimizer(const spec::Optimizer& options, FlatParameters& parameters,
                                          parallel::DecayPolicy decay) {
  check_optimizer(options);
  if (options.kind == spec::OptimizerKind::kSgd) return std::make_unique<Sgd>(options, parameters, decay);
  return std::make_unique<AdamW>(options, parameters, decay);
}

}  // namespace lockstep::engine
