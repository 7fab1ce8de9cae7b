#include "lockstep/engine/evaluate_tool.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/data/open_datasets.h"
#include "lockstep/engine/trained_model.h"
#include "lockstep/nn/language_model.h"

namespace lockstep::engine {
namespace {

using nlohmann::json;
using torch::Tensor;

constexpr double kProgressSeconds = 0.5;

double ratio(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : std::nan("");
}

json number(double value) { return std::isnan(value) ? json() : json(value); }

nn::ForwardContext context_of(const TrainedModel& trained, const data::Dataset& data, const Tensor& input) {
  nn::ForwardContext context;
  context.training = false;
  context.seed = static_cast<std::uint64_t>(trained.job.seed);
  context.padding_id = data.padding_id();
  const bool masks = trained.job.model.arch == spec::Arch::kBert && context.padding_id >= 0;
  if (masks) context.lengths = nn::lengths_without_padding(input, context.padding_id);
  return context;
}

struct Sums {
  double loss = 0.0;
  std::int64_t targets = 0, correct = 0, samples = 0;
};

class Evaluation {
 public:
  Evaluation(TrainedModel trained, const json& request, const Host& host)
      : trained_(std::move(trained)), host_(host), classes_(trained_.job.model.classes) {
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
    while (sums_.samples < samples_) {
      if (host_.stop_requested()) throw UserError(ExitCode::kInterrupted, "stopped");
      add_batch();
      tell_progress();
    }
    return answer(watch.seconds());
  }

 private:
  void add_batch() {
    std::vector<std::int64_t> indices(static_cast<std::size_t>(std::min(micro_, samples_ - sums_.samples)));
    std::iota(indices.begin(), indices.end(), sums_.samples);
    const data::Samples batch = data_->fetch(indices);
    const nn::ForwardContext context = context_of(trained_, *data_, batch.input);
    const nn::LossResult loss = trained_.model->loss(batch.input, batch.target, context);
    sums_.loss += loss.loss_sum.item<double>();
    sums_.targets += loss.count;
    sums_.correct += loss.correct;
    sums_.samples += static_cast<std::int64_t>(indices.size());
    if (counts_classes()) classes_.add(trained_.model->forward(batch.input, context).argmax(-1), batch.target);
  }

  bool counts_classes() const { return trained_.job.model.classes > 0; }

  void tell_progress() {
    if (since_.seconds() < kProgressSeconds && sums_.samples < samples_) return;
    since_.restart();
    host_.send({{"type", "progress"}, {"samples", sums_.samples}, {"of", samples_}});
  }

  json answer(double seconds) const {
    const double targets = static_cast<double>(std::max<std::int64_t>(1, sums_.targets));
    const double loss = sums_.loss / targets;
    json result = {{"schema", "lockstep.evaluation/1"},
                   {"path", trained_.path},
                   {"model", trained_.job.model.name},
                   {"data", data_->describe()},
                   {"samples", sums_.samples},
                   {"targets", sums_.targets},
                   {"loss", loss},
                   {"accuracy", static_cast<double>(sums_.correct) / targets},
                   {"seconds", seconds}};
    if (trained_.step >= 0) result["step"] = trained_.step;
    if (!counts_classes()) result["perplexity"] = std::exp(loss);
    if (counts_classes()) {
      result["f1"] = number(classes_.macro_f1());
      result["classes"] = classes_.by_class();
    }
    return result;
  }

  TrainedModel trained_;
  const Host& host_;
  ClassCounts classes_;
  std::shared_ptr<const data::Dataset> data_;
  std::int64_t samples_ = 0, micro_ = 1;
  Sums sums_;
  Stopwatch since_;
};

}  // namespace

ClassCounts::ClassCounts(std::int64_t classes)
    : hits_(static_cast<std::size_t>(std::max<std::int64_t>(0, classes))),
      predicted_(hits_.size()),
      actual_(hits_.size()) {}

void ClassCounts::add(const Tensor& predicted, const Tensor& target) {
  const Tensor guesses = predicted.reshape({-1}).contiguous(), truths = target.reshape({-1}).contiguous();
  const std::int64_t* guess = guesses.data_ptr<std::int64_t>();
  const std::int64_t* truth = truths.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < truths.numel(); ++i) {
    if (truth[i] == nn::kIgnoredTarget) continue;
    ++predicted_[static_cast<std::size_t>(guess[i])];
    ++actual_[static_cast<std::size_t>(truth[i])];
    if (guess[i] == truth[i]) ++hits_[static_cast<std::size_t>(guess[i])];
  }
}

double ClassCounts::macro_f1() const {
  double sum = 0.0;
  std::int64_t seen = 0;
  for (std::size_t i = 0; i < hits_.size(); ++i) {
    if (predicted_[i] + actual_[i] == 0) continue;
    sum += ratio(2 * hits_[i], predicted_[i] + actual_[i]);
    ++seen;
  }
  return seen > 0 ? sum / static_cast<double>(seen) : std::nan("");
}

json ClassCounts::by_class() const {
  json list = json::array();
  for (std::size_t i = 0; i < hits_.size(); ++i) {
    if (predicted_[i] + actual_[i] == 0) continue;
    list.push_back({{"class", i},
                    {"precision", number(ratio(hits_[i], predicted_[i]))},
                    {"recall", number(ratio(hits_[i], actual_[i]))},
                    {"f1", number(ratio(2 * hits_[i], predicted_[i] + actual_[i]))},
                    {"targets", actual_[i]}});
  }
  return list;
}

int run_evaluate_tool(const json& request, const Host& host) {
  return run_tool(host, [&] { return Evaluation(open_trained_model(request), request, host).run(); });
}

}  // namespace lockstep::engine
