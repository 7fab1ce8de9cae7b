// One model computed by several ranks as threads, and its gradients put together again to whole tensors.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/nn/language_model.h"
#include "tests/parallel/ranks.h"

namespace lockstep::nn::testing {

struct Split {
  int tp = 1;
  int cp = 1;
  bool sequence_parallel = false;
  plan::ContextExchange exchange = plan::ContextExchange::kRing;
  std::string name() const {
    return "tp " + std::to_string(tp) + (sequence_parallel ? " with sequence parallel" : "") + ", cp " +
           std::to_string(cp);
  }
};

struct Batch {
  torch::Tensor tokens;
  torch::Tensor target;
  ForwardContext context = {};
};

struct Outcome {
  double loss = 0;
  std::int64_t count = 0;
  torch::Tensor logits;                            // of the whole sequence
  std::map<std::string, torch::Tensor> gradients;  // of whole parameters; only those that are trained
};

// Adds noise to every parameter, the same whatever part of it a rank holds: norms and biases leave 1 and 0, and LoRA's
// B leaves 0.
inline void shake(torch::nn::Module& model, double std = 0.1) {
  const torch::NoGradGuard no_grad;
  for (const DeclaredParameter& parameter : declared_parameters(model)) {
    torch::Tensor noise = torch::empty({parameter.tensor.numel()}, torch::kDouble);
    for (const Run& run : runs_of(parameter.placement, 0, noise.numel())) {
      torch::Tensor stretch = noise.narrow(0, run.local, run.count);
      normal_value(0.0, std)(stretch, run.whole, 77, parameter.name);
    }
    torch::Tensor value = parameter.tensor;
    value.add_(noise.view(value.sizes()));
  }
}

using Prepare = std::function<void(LanguageModel&)>;

class SplitRun {
 public:
  SplitRun(const spec::Model& spec, const Split& split, const Batch& batch)
      : spec_(spec), split_(split), batch_(batch) {}

  Outcome run(const Prepare& prepare) {
    parallel::run_ranks(split_.tp * split_.cp, [&](comm::Communicator world) { run_rank(world, prepare); });
    return std::move(outcome_);
  }

 private:
  Partition partition_of(comm::Communicator& world) const {
    const int tp = world.rank() % split_.tp, cp = world.rank() / split_.tp;
    const auto group = [&](int first, int count, int stride, const char* name) {
      std::vector<int> members;
      for (int i = 0; i < count; ++i) members.push_back(first + i * stride);
      return count > 1 ? world.subgroup(members, name) : comm::Communicator();
    };
    Partition partition;
    partition.tp = group(cp * split_.tp, split_.tp, 1, "tp");
    partition.cp = group(tp, split_.cp, split_.tp, "cp");
    partition.sequence_parallel = split_.sequence_parallel;
    partition.context_exchange = split_.exchange;
    return partition;
  }

  void run_rank(comm::Communicator& world, const Prepare& prepare) {
    const Partition partition = partition_of(world);
    const auto model = std::dynamic_pointer_cast<LanguageModel>(
        build_model(spec_, {.dtype = torch::kDouble, .seed = 4, .partition = partition}));
    prepare(*model);
    Batch own = batch_;
    if (split_.cp > 1) {
      own.context.positions =
          context_positions(batch_.tokens.size(1), partition.cp_rank(), split_.cp, balances_context(spec_, partition));
      own.tokens = batch_.tokens.index_select(1, own.context.positions);
      own.target = batch_.target.index_select(1, own.context.positions);
    }
    const LossResult result = model->loss(own.tokens, own.target, own.context);
    result.loss_sum.backward();
    ForwardContext evaluation = own.context;
    evaluation.training = false;
    const torch::NoGradGuard no_grad;
    const torch::Tensor logits = model->forward(own.tokens, evaluation);
    const std::lock_guard lock(mutex_);
    add_result(result, logits, own, partition);
    for (const DeclaredParameter& parameter : declared_parameters(*model)) add_gradient(parameter, partition);
  }

  void add_result(const LossResult& result, const torch::Tensor& logits, const Batch& own, const Partition& partition) {
    if (partition.tp_rank() != 0) return;
    outcome_.loss += result.loss_sum.item<double>();
    outcome_.count += result.count;
    if (split_.cp == 1) {
      outcome_.logits = logits;
      return;
    }
    if (!outcome_.logits.defined()) {
      outcome_.logits = torch::zeros({logits.size(0), batch_.tokens.size(1), logits.size(2)}, logits.options());
    }
    outcome_.logits.index_copy_(1, own.context.positions, logits);
  }

  void add_gradient(const DeclaredParameter& parameter, const Partition& partition) {
    if (!parameter.tensor.requires_grad()) {
      EXPECT_FALSE(parameter.tensor.grad().defined()) << parameter.name;
      return;
    }
    ASSERT_TRUE(parameter.tensor.grad().defined()) << parameter.name;
    const Placement& placement = parameter.placement;
    if (!placement.partial_gradient && partition.tp_rank() % placement.sharers != 0) return;
    torch::Tensor& whole = outcome_.gradients[parameter.name];
    if (!whole.defined()) whole = torch::zeros(placement.whole, torch::kDouble);
    const torch::Tensor local = parameter.tensor.grad().reshape({-1});
    for (const Run& run : runs_of(placement, 0, local.numel())) {
      whole.view({-1}).narrow(0, run.whole, run.count) += local.narrow(0, run.local, run.count);
    }
  }

  spec::Model spec_;
  Split split_;
  Batch batch_;
  std::mutex mutex_;
  Outcome outcome_;
};

inline Outcome run_split(
    const spec::Model& spec, const Split& split, const Batch& batch,
    const Prepare& prepare = [](LanguageModel& model) { shake(model); }) {
  return SplitRun(spec, split, batch).run(prepare);
}

inline void expect_near(const torch::Tensor& a, const torch::Tensor& b, double tolerance, const std::string& what) {
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  EXPECT_LE((a - b).abs().max().item<double>(), tolerance * std::max(1.0, b.abs().max().item<double>())) << what;
}

inline void expect_same(const Outcome& actual, const Outcome& expected, double tolerance, const std::string& what) {
  EXPECT_NEAR(actual.loss, expected.loss, tolerance * std::max(1.0, expected.loss)) << what;
  EXPECT_EQ(actual.count, expected.count) << what;
  expect_near(actual.logits, expected.logits, tolerance, what + ", logits");
  ASSERT_EQ(actual.gradients.size(), expected.gradients.size()) << what;
  for (const auto& [name, gradient] : expected.gradients) {
    ASSERT_TRUE(actual.gradients.count(name)) << what << ", " << name;
    expect_near(actual.gradients.at(name), gradient, tolerance, what + ", " + name);
  }
}

}  // namespace lockstep::nn::testing
