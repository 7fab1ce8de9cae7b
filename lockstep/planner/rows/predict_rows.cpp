#include "lockstep/planner/rows/predict_rows.h"

#include <cmath>
#include <exception>

#include <fmt/format.h>

#include "lockstep/planner/observations.h"
#include "lockstep/planner/rows/observed_rows.h"

namespace lockstep::planner {
namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

plan::Interval per_gpu(const plan::Interval& whole, double gpus) {
  return {.low = whole.low / gpus, .expected = whole.expected / gpus, .high = whole.high / gpus};
}

}  // namespace

RowPrediction price_question(const RowQuestion& question, const cost::Profile& profile, double time_sigma) {
  const cost::Pricer pricer(
      question.model, question.cluster, profile,
      {.sequence_length = question.batch.sequence_length, .lora = question.lora, .gradient_norm = false});
  cost::Price price = pricer.price(question.layout, question.batch);
  price.time_sigma = std::hypot(time_sigma > 0 ? time_sigma : price.time_sigma, question.guess_sigma);
  const plan::Prediction prediction = pricer.predict(price, question.layout, question.batch);
  RowPrediction result;
  result.tokens_per_second_per_gpu =
      per_gpu(prediction.tokens_per_second, static_cast<double>(question.layout.world()));
  result.memory_gib = memory_bytes_of(question, pricer, price) / kGib;
  result.fits = price.fits() && !question.cannot_run;
  result.out_of_memory_probability = price.out_of_memory_probability();
  result.profile = profile.identity();
  result.note = question.note;
  if (price.fused) result.note += (result.note.empty() ? "" : "; ") + std::string("the engine's fused step of one GPU");
  return result;
}

cost::Profile RowPredictor::profile_for(const RowQuestion& question) const {
  if (fixed_) return *fixed_;
  cost::Profile profile = cost::profile_for(question.device_kind, question.stack);
  if (profile.fitted) profile.fitted->facts = question.facts;
  return profile;
}

// Facts may differ from row to row of one stack; what is learnt about its constants is the same for all.
const cost::Posterior& RowPredictor::posterior_for(const RowQuestion& question) {
  const std::string key = fixed_ ? "" : question.device_kind + "|" + question.stack;
  const auto found = met_.find(key);
  if (found != met_.end()) return found->second;
  const cost::Profile prior = profile_for(question);
  return met_.try_emplace(key, prior, observed_rows(observed_, prior)).first->second;
}

std::vector<cost::RunVerdict> RowPredictor::observed_runs() const {
  std::map<std::string, cost::RunVerdict> runs;
  for (const auto& [key, posterior] : met_) {
    for (const cost::RunVerdict& run : posterior.verdicts()) runs.try_emplace(run.name, run);
  }
  std::vector<cost::RunVerdict> all;
  all.reserve(runs.size());
  for (const auto& [name, run] : runs) all.push_back(run);
  return all;
}

RowPrediction RowPredictor::predict(const PublishedRow& row) {
  const RowReading reading = question_of(row);
  if (!reading.question) {
    RowPrediction none{.note = reading.why_not};
    if (reading.cannot_run) none.fits = false;
    return none;
  }
  try {
    const RowQuestion& question = *reading.question;
    const cost::Posterior& posterior = posterior_for(question);
    cost::Profile profile = posterior.profile();
    if (!fixed_ && profile.fitted) profile.fitted->facts = question.facts;
    if (observed_.rows.empty()) return price_question(question, profile);
    RowQuestion sure = question;  // what was guessed is added by price_question
    sure.guess_sigma = 0;
    return price_question(question, profile, posterior.spread_of(figures_of(sure, profile)).time);
  } catch (const std::exception& problem) {
    return {.note = problem.what()};
  }
}

}  // namespace lockstep::planner
