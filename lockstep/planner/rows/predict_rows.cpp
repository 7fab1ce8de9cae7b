#include "lockstep/planner/rows/predict_rows.h"

#include <exception>

#include <fmt/format.h>

namespace lockstep::planner {
namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

plan::Interval per_gpu(const plan::Interval& whole, double gpus) {
  return {.low = whole.low / gpus, .expected = whole.expected / gpus, .high = whole.high / gpus};
}

}  // namespace

RowPrediction price_question(const RowQuestion& question, const cost::Profile& profile) {
  const cost::Pricer pricer(question.model, question.cluster, profile,
                            {.sequence_length = question.batch.sequence_length, .gradient_norm = false});
  const cost::Price price = pricer.price(question.layout, question.batch);
  const plan::Prediction prediction = pricer.predict(price, question.layout, question.batch);
  RowPrediction result;
  result.tokens_per_second_per_gpu =
      per_gpu(prediction.tokens_per_second, static_cast<double>(question.layout.world()));
  result.memory_gib = (question.memory_is_reserved ? price.memory.total() : price.allocated_bytes()) / kGib;
  result.fits = price.fits() && !question.cannot_run;
  result.out_of_memory_probability = price.out_of_memory_probability();
  result.profile = profile.identity();
  result.note = question.note;
  if (price.fused) result.note += (result.note.empty() ? "" : "; ") + std::string("the engine's fused step of one GPU");
  return result;
}

cost::Profile RowPredictor::profile_for(const RowQuestion& question) {
  if (fixed_) return *fixed_;
  const std::string key = question.device_kind + "|" + question.stack;
  auto found = met_.find(key);
  if (found == met_.end()) found = met_.emplace(key, cost::profile_for(question.device_kind, question.stack)).first;
  cost::Profile profile = found->second;
  if (profile.fitted) profile.fitted->facts = question.facts;
  return profile;
}

RowPrediction RowPredictor::predict(const PublishedRow& row) {
  const RowReading reading = question_of(row);
  if (!reading.question) {
    RowPrediction none{.note = reading.why_not};
    if (reading.cannot_run) none.fits = false;
    return none;
  }
  try {
    return price_question(*reading.question, profile_for(*reading.question));
  } catch (const std::exception& problem) {
    return {.note = problem.what()};
  }
}

}  // namespace lockstep::planner
