// What `lockstep evaluate` does: figures of trained weights on held-out data. One process and no layout, so the figures
// do not depend on how the weights were trained.
#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>
#include <nlohmann/json.hpp>

#include "lockstep/engine/run_context.h"

namespace lockstep::engine {

// Hits and misses of each class, from which precision, recall and F1 follow.
class ClassCounts {
 public:
  explicit ClassCounts(std::int64_t classes);
  // predicted, target int64 [n]; targets that are not counted (-100) are skipped.
  void add(const torch::Tensor& predicted, const torch::Tensor& target);
  // F1 = 2 hits / (predicted + actual); a class that neither occurs nor is predicted does not count in the mean.
  double macro_f1() const;
  // [{"class", "precision", "recall", "f1", "targets"}] of the classes that occur or are predicted; a ratio of nothing
  // is null.
  nlohmann::json by_class() const;

 private:
  std::vector<std::int64_t> hits_, predicted_, actual_;
};

// `request`: that of open_trained_model() and {"samples": 0 for all, "micro": samples at a time}. The answer is
// lockstep.evaluation/1 (docs/reference/evaluate.md). Sends {"type": "progress", "samples", "of"} on the way.
int run_evaluate_tool(const nlohmann::json& request, const Host& host);

}  // namespace lockstep::engine
