// Losses: what a model's output is compared with its target by. A loss is kept as a sum and a count, so that ranks and
// micro-batches add up to the mean of the whole step.
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace lockstep::plugin {

// A target that does not count (PyTorch's ignore_index).
inline constexpr std::int64_t kIgnored = -100;

// Over what the mean is taken: samples, or elements of an int64 target that are not kIgnored. Lockstep counts them
// before the model runs, so the loss must count the same.
enum class Counted { kSamples, kTargets };

struct Loss {
  torch::Tensor sum;         // 0-dim, over what is counted
  std::int64_t count = 0;    // of what is counted
  std::int64_t correct = 0;  // hits, outside training; 0 where there is no such thing
};

// A loss by name (model: {loss: NAME}) for any model of a plugin and any module from Python. Constructed with the keys
// of model.loss_options. Any thread, several at once.
class LossFunction {
 public:
  virtual ~LossFunction() = default;
  virtual Counted counted() const { return Counted::kSamples; }
  // `output`: the first tensor that the last unit returned, in fp32 or fp64.
  virtual Loss compute(const torch::Tensor& output, const torch::Tensor& target, bool training) const = 0;
};

// The loss whose elements are one number per sample: [samples].
inline Loss sum_of_samples(const torch::Tensor& of_sample) { return {of_sample.sum(), of_sample.size(0)}; }

}  // namespace lockstep::plugin
