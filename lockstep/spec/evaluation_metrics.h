// The metrics of an evaluation beside its loss, by name, and for which jobs they make sense. Their formulas are in
// engine/metrics.h.
//
//   accuracy    share of the counted targets that are the likeliest class or token
//   f1          mean over classes of 2 hits / (predicted + actual), of those that occur or are predicted (macro)
//   f1_micro    the same of all classes together; with one label each it is the accuracy
//   perplexity  e to the loss
//
// A name that is none of these is looked up in the plugin of `evaluation.plugin`.
#pragma once

#include <optional>
#include <string>

#include "lockstep/spec/job.h"

namespace lockstep::spec {

enum class Metric { kAccuracy, kF1, kF1Micro, kPerplexity };
constexpr auto names_of(Metric) { return enum_names<Metric::kPerplexity>("accuracy", "f1", "f1_micro", "perplexity"); }

struct MetricProblem {
  std::string text, fix;
};

// Why the job's model and data have no such metric; nothing where they have.
std::optional<MetricProblem> metric_problem(const std::string& name, const Job& job);

}  // namespace lockstep::spec
