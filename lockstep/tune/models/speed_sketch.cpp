#include "lockstep/tune/models/speed_sketch.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "lockstep/base/text.h"
#include "lockstep/tune/job/knob_nature.h"

namespace lockstep::tune {
namespace {

// A kernel's fixed costs weigh as much as a sample or two.
double micro_batch(const Value& value, double least) {
  const double number = std::max(number_of(value).value_or(0), least);
  return std::log(number / (number + 1.5 * least));
}
double recompute(const Value& value, double) {
  const std::string word = to_lower(to_text(value));
  if (word == "selective") return -0.06;
  return word == "full" || is_on(word) ? -0.28 : 0.0;
}
double precision(const Value& value, double) {
  const std::string word = to_lower(to_text(value));
  return word.find("32") != std::string::npos ? -0.35 : 0.0;
}
double workers(const Value& value, double) { return -0.3 / (1 + number_of(value).value_or(0)); }
double thinner(const Value& value, double) { return -0.1 * std::log2(std::max(number_of(value).value_or(0), 1.0)); }

double least_number(const Knob& knob) {
  if (knob.kind != KnobKind::kChoice) return std::max(knob.low, 1.0);
  double least = 1e300;
  for (const Value& value : knob.choices) least = std::min(least, number_of(value).value_or(0));
  return std::max(least, 1e-3);
}

}  // namespace

SpeedSketch::SpeedSketch(const Space& space) {
  for (std::size_t i = 0; i < space.size(); ++i) {
    const Knob& knob = space.knobs()[i];
    const std::string name = compact_name(knob.name);
    const auto has = [&](std::string_view piece) { return name.find(piece) != std::string::npos; };
    const double least = least_number(knob);
    if (has("microbatch") || has("batchmicro") || name == "mb" || name == "mbs")
      entries_.push_back({i, micro_batch, least});
    else if (has("recompute") || has("checkpointing"))
      entries_.push_back({i, recompute, least});
    else if (has("precision") || has("dtype"))
      entries_.push_back({i, precision, least});
    else if (has("numworkers"))
      entries_.push_back({i, workers, least});
    else if (name == "tp" || name == "layouttp" || has("tensorparallel") || name == "pp" || name == "layoutpp" ||
             has("pipelineparallel"))
      entries_.push_back({i, thinner, least});
  }
}

double SpeedSketch::log_throughput(const Config& config) const {
  double sum = 0;
  for (const Entry& entry : entries_)
    if (is_active(config.values[entry.knob])) sum += entry.effect(config.values[entry.knob], entry.least);
  return sum;
}

}  // namespace lockstep::tune
