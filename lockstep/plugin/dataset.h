// Dataset: numbered samples that can be fetched in any order. Lockstep shuffles, deals them out to ranks, and resumes
// at the exact sample.
//
//   struct Waves : lockstep::plugin::Dataset {
//     Waves(Options& options, Split split);
//     ...
//   };
//   LOCKSTEP_REGISTER_DATASET("waves", Waves)
//
// Constructed twice on every rank: for training, and for evaluation, where size() may be 0 (there is none then).
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/plugin/options.h"

namespace lockstep::plugin {

enum class Split { kTraining, kEvaluation };

// Samples side by side: every tensor has them as its first dimension, and owns its memory.
struct Samples {
  std::vector<torch::Tensor> inputs;  // at least one
  torch::Tensor target;
};

// Immutable after construction: every method may be called from several threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  // In the order given; no indices give tensors whose first dimension is 0.
  virtual Samples fetch(const std::vector<std::int64_t>& indices) const = 0;
  // One line: "1,000 waves of 64 points".
  virtual std::string describe() const = 0;
  // What tokens per second count; 0: samples are counted.
  virtual std::int64_t tokens_per_sample() const { return 0; }
};

}  // namespace lockstep::plugin
