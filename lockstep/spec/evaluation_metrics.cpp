#include "lockstep/spec/evaluation_metrics.h"

#include <fmt/format.h>

#include "lockstep/base/text.h"

namespace lockstep::spec {
namespace {

// Whether the loss is a cross-entropy over classes or tokens.
bool has_classes(const Job& job) {
  const ScriptLoss loss = job.model.script.loss;
  return !job.model.is_scripted() || counts_classes(loss) || loss == ScriptLoss::kOwn;  // which says what it hits
}

// Whether the targets are tokens of a text.
bool predicts_tokens(const Job& job) {
  if (job.model.is_scripted()) {
    const DataKind kind = job.data.kind;
    return kind == DataKind::kText || kind == DataKind::kTokens || kind == DataKind::kInstruction;
  }
  return job.model.is_language_model() && job.model.classes == 0;
}

}  // namespace

std::optional<MetricProblem> metric_problem(const std::string& name, const Job& job) {
  const std::string what = printable(job.model.name);
  const auto metric = value_named<Metric>(name);
  if (!metric && job.evaluation.plugin.used()) return std::nullopt;  // its file was asked when the job was read
  if (!metric) {
    return MetricProblem{fmt::format("unknown metric `{}`", printable(name)), "accuracy, f1, f1_micro or perplexity"};
  }
  if (!has_classes(job)) {
    return MetricProblem{fmt::format("metric {}: the loss of {} is {}, which counts no classes", name, what,
                                     to_string(job.model.script.loss)),
                         "leave it out: the loss is recorded in any case"};
  }
  const bool f1 = *metric == Metric::kF1 || *metric == Metric::kF1Micro;
  if (f1 && predicts_tokens(job)) {
    return MetricProblem{fmt::format("metric {}: {} predicts tokens, not classes of samples", name, what),
                         "use accuracy or perplexity"};
  }
  if (*metric == Metric::kPerplexity && !predicts_tokens(job)) {
    return MetricProblem{fmt::format("metric perplexity: {} predicts classes of samples, not tokens", what),
                         "use accuracy or f1"};
  }
  return std::nullopt;
}

}  // namespace lockstep::spec
