#include "lockstep/engine/evaluate_tool.h"

#include <algorithm>
#include <numeric>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/data/open_datasets.h"
#include "lockstep/engine/metrics.h"
#include "lockstep/engine/trained_model.h"
#include "lockstep/nn/language_model.h"
#include "lockstep/spec/evaluation_metrics.h"

namespace lockstep::engine {
namespace {

using nlohmann::json;
using torch::Tensor;

constexpr double kProgressSeconds = 0.5;

nn::ForwardContext context_of(const TrainedModel& trained, const data::Dataset& data, const data::Samples& batch) {
  const Tensor& input = batch.input;
  nn::ForwardContext context;
  context.training = false;
  context.seed = static_cast<std::uint64_t>(trained.job.seed);
  context.padding_id = data.padding_id();
  const bool masks = trained.job.model.arch == spec::Arch::kBert && context.padding_id >= 0;
  if (masks) context.lengths = nn::lengths_without_padding(input, context.padding_id);
  context.documents = batch.documents;
  context.more_inputs = batch.more_inputs;
  return context;
}

// Those that the job names, and all that its model and data have.
spec::Job with_all_metrics(spec::Job job) {
  std::vector<std::string>& names = job.evaluation.metrics;
  // Whether a plugin's loss is one of classes is not known; it counts its hits, as in training.
  const bool own = job.model.is_scripted() && job.model.script.loss == spec::ScriptLoss::kOwn;
  for (const char* name : names_of(spec::Metric{})) {
    if (own && std::string(name) != to_string(spec::Metric::kAccuracy)) continue;
    const bool there = std::find(names.begin(), names.end(), name) != names.end();
    if (!there && !spec::metric_problem(name, job)) names.emplace_back(name);
  }
  return job;
}

class Evaluation {
 public:
  Evaluation(TrainedModel trained, const json& request, const Host& host)
      : trained_(std::move(trained)), host_(host), metrics_(with_all_metrics(trained_.job)) {
    if (trained_.job.steps == 0 && trained_.job.tokens == 0 && trained_.job.epochs == 0.0) {
      throw bad_input("a folder of weights does not say what to evaluate on", "add --job JOB.yaml");
    }
    data_ = data::open_datasets(trained_.job).evaluation;
    if (!data_) {
      throw bad_input("the job keeps no data for evaluation", "add data.evaluation_path=..., or data.holdout=0.05");
    }
    const std::int64_t wanted = request.value("samples", std::int64_t{0});
    samples_ = wanted > 0 ? std::min(wanted, data_->size()) : data_->size();
    micro_ = std::max<std::int64_t>(1, request.value("micro", trained_.job.batch.micro));
  }

  json run() {
    const torch::NoGradGuard no_grad;
    const Stopwatch watch;
    while (done_ < samples_) {
      if (host_.stop_requested()) throw UserError(ExitCode::kInterrupted, "stopped");
      add_batch();
      tell_progress();
    }
    return answer(watch.seconds());
  }

 private:
  void add_batch() {
    std::vector<std::int64_t> indices(static_cast<std::size_t>(std::min(micro_, samples_ - done_)));
    std::iota(indices.begin(), indices.end(), done_);
    const data::Samples batch = data_->fetch(indices);
    const nn::ForwardContext context = context_of(trained_, *data_, batch);
    const nn::LossResult loss = trained_.model->loss(batch.input, batch.target, context);
    Tensor output;
    if (metrics_.need_output()) output = trained_.model->forward(batch.input, context);
    metrics_.add({loss.loss_sum.item<double>(), loss.count, loss.correct}, output, batch.target);
    done_ += static_cast<std::int64_t>(indices.size());
  }

  void tell_progress() {
    if (since_.seconds() < kProgressSeconds && done_ < samples_) return;
    since_.restart();
    host_.send({{"type", "progress"}, {"samples", done_}, {"of", samples_}});
  }

  json answer(double seconds) const {
    json result = {{"schema", "lockstep.evaluation/1"}, {"path", trained_.path}, {"model", trained_.job.model.name},
                   {"data", data_->describe()},         {"samples", done_},      {"targets", metrics_.sums().targets},
                   {"loss", metrics_.loss()},           {"seconds", seconds}};
    if (trained_.step >= 0) result["step"] = trained_.step;
    result.update(values_json(metrics_.values()));
    for (const std::string& name : trained_.job.evaluation.metrics) {
      if (!value_named<spec::Metric>(name)) result["plugin_metrics"].push_back(name);
    }
    if (const auto classes = metrics_.classes()) result["classes"] = classes->by_class();
    return result;
  }

  TrainedModel trained_;
  const Host& host_;
  EvaluationMetrics metrics_;
  std::shared_ptr<const data::Dataset> data_;
  std::int64_t samples_ = 0, micro_ = 1, done_ = 0;
  Stopwatch since_;
};

}  // namespace

int run_evaluate_tool(const json& request, const Host& host) {
  return run_tool(host, [&] { return Evaluation(open_trained_model(request), request, host).run(); });
}

}  // namespace lockstep::engine
