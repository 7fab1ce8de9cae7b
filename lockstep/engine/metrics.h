// The metrics of an evaluation (spec/evaluation_metrics.h), of training runs and of `lockstep evaluate` alike. All that
// is known of the samples are sums, of counts wherever a metric counts, which are whole numbers: so micro-batches and
// ranks may be added up in any order, and the value does not depend on the layout.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>
#include <nlohmann/json.hpp>

#include "lockstep/plugin/metric.h"
#include "lockstep/spec/job.h"

namespace lockstep::engine {

// What a rank counts of evaluation batches.
struct EvaluationSums {
  double loss = 0.0;
  std::int64_t targets = 0, correct = 0;
};

// Hits, predictions and targets of each class, from which precision, recall and F1 follow. Classes are those that were
// seen, from 0 on.
class ClassCounts {
 public:
  ClassCounts() = default;
  // `sums`: those of another one.
  explicit ClassCounts(std::vector<double> sums) : sums_(std::move(sums)) {}

  // predicted, target int64, of the same sizes; targets that are not counted (-100) are skipped.
  void add(const torch::Tensor& predicted, const torch::Tensor& target);
  // F1 = 2 hits / (predicted + actual); a class that neither occurs nor is predicted does not count in the mean.
  double macro_f1() const;
  // Of the sums over all classes.
  double micro_f1() const;
  // [{"class", "precision", "recall", "f1", "targets"}] of the classes that occur or are predicted; a ratio of nothing
  // is null.
  nlohmann::json by_class() const;

  // Three for each class: hits, predicted, actual. They add up.
  const std::vector<double>& sums() const { return sums_; }

 private:
  std::size_t classes() const { return sums_.size() / 3; }

  std::vector<double> sums_;
};

// The metrics that a job names, over one evaluation. Belongs to one thread.
class EvaluationMetrics {
 public:
  // Throws bad_input where the job has no such metric.
  explicit EvaluationMetrics(const spec::Job& job);

  // Whether add() needs what the model gives, beside its loss.
  bool need_output() const;
  // `output` and `target` of a micro-batch, `sums` those of it alone; output may be undefined where it is not needed.
  void add(const EvaluationSums& sums, const torch::Tensor& output, const torch::Tensor& target);
  // Calls sum(values) for every list of numbers that ranks add up, in the same order and of the same length on all.
  void reduce(const std::function<void(std::vector<double>&)>& sum, const std::function<void(std::int64_t&)>& largest);

  const EvaluationSums& sums() const { return sums_; }
  double loss() const;
  double accuracy() const;
  // The value of each metric by its name, in the job's order; NaN where there is none.
  std::vector<std::pair<std::string, double>> values() const;
  // What f1 counted; nothing without it.
  std::optional<ClassCounts> classes() const;

 private:
  struct Entry {
    std::string name;
    std::shared_ptr<const plugin::Metric> metric;  // null: follows from the loss and the hits
    std::vector<double> sums;
  };

  std::vector<Entry> entries_;
  EvaluationSums sums_;
};

// {"name": value}; null where there is none.
nlohmann::json values_json(const std::vector<std::pair<std::string, double>>& values);

}  // namespace lockstep::engine
