// Metric: a figure of an evaluation beside its loss. It keeps nothing itself: what it knows of the samples are sums,
// which micro-batches and ranks add up, so that the value does not depend on the layout.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace lockstep::plugin {

// One micro-batch that was evaluated.
struct Judged {
  const torch::Tensor& output;  // what the model gives: logits [samples, ..., classes], or whatever its loss compares
  const torch::Tensor& target;  // -100: not counted
  double loss_sum = 0.0;        // over `count` targets
  std::int64_t count = 0;
};

class Metric {
 public:
  virtual ~Metric() = default;
  // Adds this micro-batch to `sums`, which is empty before the first and grows as the metric needs; where ranks' lists
  // differ in length, what is missing counts as zeros. Any thread, several at once.
  virtual void add(const Judged& batch, std::vector<double>& sums) const = 0;
  // The value of all samples; `sums` are those of all ranks. NaN: there is none.
  virtual double value(const std::vector<double>& sums) const = 0;
};

}  // namespace lockstep::plugin
