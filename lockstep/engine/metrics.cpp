#include "lockstep/engine/metrics.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/nn/model.h"
#include "lockstep/plugin/library.h"
#include "lockstep/spec/evaluation_metrics.h"

namespace lockstep::engine {
namespace {

using nlohmann::json;
using torch::Tensor;

enum Count : std::size_t { kHits, kPredicted, kActual, kCounts };

double ratio(double part, double whole) { return whole > 0 ? part / whole : std::nan(""); }

json number(double value) { return std::isfinite(value) ? json(value) : json(); }

// The likeliest classes, in the shape of the target: logits have the classes in dim 1 or the last one.
Tensor likeliest(const Tensor& output, const Tensor& target) {
  const auto sizes = output.sizes(), wanted = target.sizes();
  if (sizes.size() == wanted.size() + 1 && sizes.slice(0, wanted.size()) == wanted) return output.argmax(-1);
  if (sizes.size() == wanted.size() + 1 && sizes[0] == wanted[0] && sizes.slice(2) == wanted.slice(1)) {
    return output.argmax(1);
  }
  throw bad_input("metric f1: the model's output has no class for every target", "its classes are dim 1 or the last");
}

class F1 : public plugin::Metric {
 public:
  explicit F1(bool micro) : micro_(micro) {}

  void add(const plugin::Judged& batch, std::vector<double>& sums) const override {
    ClassCounts counts(std::move(sums));
    counts.add(likeliest(batch.output, batch.target), batch.target);
    sums = counts.sums();
  }

  double value(const std::vector<double>& sums) const override {
    const ClassCounts counts(sums);
    return micro_ ? counts.micro_f1() : counts.macro_f1();
  }

 private:
  bool micro_;
};

// What a plugin's metric throws names it.
class PluginMetric : public plugin::Metric {
 public:
  PluginMetric(const spec::Job& job, const std::string& name)
      : use_(spec::named_in(job.evaluation.plugin, name)),
        title_(plugin::title_of(use_, spec::PluginKind::kMetric)),
        own_(plugin::make_metric(use_, "evaluation")) {}

  void add(const plugin::Judged& batch, std::vector<double>& sums) const override {
    plugin::calling(title_, "add", [&] { own_->add(batch, sums); });
  }
  double value(const std::vector<double>& sums) const override {
    return plugin::calling(title_, "value", [&] { return own_->value(sums); });
  }

 private:
  spec::PluginUse use_;
  std::string title_;
  std::unique_ptr<plugin::Metric> own_;
};

std::shared_ptr<const plugin::Metric> metric_named(spec::Metric metric) {
  if (metric == spec::Metric::kF1) return std::make_shared<F1>(false);
  if (metric == spec::Metric::kF1Micro) return std::make_shared<F1>(true);
  return nullptr;
}

}  // namespace

void ClassCounts::add(const Tensor& predicted, const Tensor& target) {
  const auto on_host = [](const Tensor& t) { return t.to(torch::kCPU, torch::kInt64).reshape({-1}).contiguous(); };
  const Tensor guesses = on_host(predicted), truths = on_host(target);
  LOCKSTEP_ASSERT(guesses.numel() == truths.numel(), "one prediction for each target");
  const std::int64_t* guess = guesses.data_ptr<std::int64_t>();
  const std::int64_t* truth = truths.data_ptr<std::int64_t>();
  const auto at = [this](std::int64_t number, Count count) -> double& {
    const std::size_t place = static_cast<std::size_t>(number) * kCounts;
    if (sums_.size() < place + kCounts) sums_.resize(place + kCounts);
    return sums_[place + count];
  };
  for (std::int64_t i = 0; i < truths.numel(); ++i) {
    if (truth[i] == nn::kIgnoredTarget) continue;
    at(guess[i], kPredicted) += 1;
    at(truth[i], kActual) += 1;
    if (guess[i] == truth[i]) at(guess[i], kHits) += 1;
  }
}

double ClassCounts::macro_f1() const {
  double sum = 0.0, seen = 0.0;
  for (std::size_t i = 0; i < classes(); ++i) {
    const double* of_class = &sums_[i * kCounts];
    const double both = of_class[kPredicted] + of_class[kActual];
    if (both == 0) continue;
    sum += 2 * of_class[kHits] / both;
    seen += 1;
  }
  return ratio(sum, seen);
}

double ClassCounts::micro_f1() const {
  double hits = 0.0, both = 0.0;
  for (std::size_t i = 0; i < classes(); ++i) {
    hits += sums_[i * kCounts + kHits];
    both += sums_[i * kCounts + kPredicted] + sums_[i * kCounts + kActual];
  }
  return ratio(2 * hits, both);
}

json ClassCounts::by_class() const {
  json list = json::array();
  for (std::size_t i = 0; i < classes(); ++i) {
    const double* of_class = &sums_[i * kCounts];
    const double both = of_class[kPredicted] + of_class[kActual];
    if (both == 0) continue;
    list.push_back({{"class", i},
                    {"precision", number(ratio(of_class[kHits], of_class[kPredicted]))},
                    {"recall", number(ratio(of_class[kHits], of_class[kActual]))},
                    {"f1", number(ratio(2 * of_class[kHits], both))},
                    {"targets", static_cast<std::int64_t>(of_class[kActual])}});
  }
  return list;
}

EvaluationMetrics::EvaluationMetrics(const spec::Job& job) {
  for (const std::string& name : job.evaluation.metrics) {
    if (const auto problem = spec::metric_problem(name, job)) throw bad_input(problem->text, problem->fix);
    const auto ours = value_named<spec::Metric>(name);
    entries_.push_back({name, ours ? metric_named(*ours) : std::make_shared<PluginMetric>(job, name), {}});
  }
}

bool EvaluationMetrics::need_output() const {
  return std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) { return entry.metric != nullptr; });
}

void EvaluationMetrics::add(const EvaluationSums& sums, const Tensor& output, const Tensor& target) {
  sums_.loss += sums.loss;
  sums_.targets += sums.targets;
  sums_.correct += sums.correct;
  if (!output.defined()) return;
  for (Entry& entry : entries_) {
    if (entry.metric) entry.metric->add({output, target, sums.loss, sums.targets}, entry.sums);
  }
}

void EvaluationMetrics::reduce(const std::function<void(std::vector<double>&)>& sum,
                               const std::function<void(std::int64_t&)>& largest) {
  // Counts below 2^53 are exact in fp64.
  std::vector<double> own = {sums_.loss, static_cast<double>(sums_.targets), static_cast<double>(sums_.correct)};
  sum(own);
  sums_ = {own[0], static_cast<std::int64_t>(own[1]), static_cast<std::int64_t>(own[2])};
  for (Entry& entry : entries_) {
    if (!entry.metric) continue;
    auto length = static_cast<std::int64_t>(entry.sums.size());
    largest(length);
    entry.sums.resize(static_cast<std::size_t>(length));
    if (length > 0) sum(entry.sums);
  }
}

double EvaluationMetrics::loss() const {
  return sums_.loss / static_cast<double>(std::max<std::int64_t>(1, sums_.targets));
}

double EvaluationMetrics::accuracy() const {
  return static_cast<double>(sums_.correct) / static_cast<double>(std::max<std::int64_t>(1, sums_.targets));
}

std::vector<std::pair<std::string, double>> EvaluationMetrics::values() const {
  std::vector<std::pair<std::string, double>> values;
  for (const Entry& entry : entries_) {
    const bool accuracy_itself = entry.name == to_string(spec::Metric::kAccuracy);
    const double without = accuracy_itself ? accuracy() : std::exp(loss());
    values.emplace_back(entry.name, entry.metric ? entry.metric->value(entry.sums) : without);
  }
  return values;
}

std::optional<ClassCounts> EvaluationMetrics::classes() const {
  for (const Entry& entry : entries_) {
    if (entry.name == to_string(spec::Metric::kF1)) return ClassCounts(entry.sums);
  }
  return std::nullopt;
}

json values_json(const std::vector<std::pair<std::string, double>>& values) {
  json object = json::object();
  for (const auto& [name, value] : values) object[name] = number(value);
  return object;
}

}  // namespace lockstep::engine
