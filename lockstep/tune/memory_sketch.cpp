#include "lockstep/tune/memory_sketch.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "lockstep/base/text.h"
#include "lockstep/tune/space_domain.h"

namespace lockstep::tune {
namespace {

constexpr int kDraws = 1500;
constexpr std::size_t kKept = 96;
constexpr double kSharpness = 0.12;  // of the edge, in the logarithm of memory: what the formula leaves out
constexpr std::size_t kGrid = 16;    // slots of a knob with more values than that

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  double uniform(double low, double high) { return low + (high - low) * draw_unit(random_); }
  double normal(double deviation) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += draw_unit(random_);
    return deviation * sum;
  }

 private:
  Random random_;
};

std::string compact(std::string_view name) {
  std::string text;
  for (const char c : to_lower(name))
    if (c != '_' && c != '-' && c != '.') text.push_back(c);
  return text;
}

bool has(const std::string& text, std::string_view piece) { return text.find(piece) != std::string::npos; }

double number_or(const Value& value, double fallback) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(&value)) return *real;
  return fallback;
}

bool is_on(const std::string& word) { return word == "true" || word == "on" || word == "1" || word == "yes"; }

// Logarithms of what one knob does to states and activations, for each of its values.
struct Factors {
  std::vector<double> states, activations;
};

class FactorDraw {
 public:
  FactorDraw(const Knob& knob, std::span<const Value> values)
      : knob_(knob), values_(values), name_(compact(knob.name)) {}

  Factors operator()(Draw& draw) const {
    Factors factors{std::vector<double>(values_.size(), 0.0), std::vector<double>(values_.size(), 0.0)};
    const bool axis = name_ == "tp" || name_ == "pp" || name_ == "cp" || name_ == "dp" || name_ == "layouttp" ||
                      name_ == "layoutpp" || name_ == "layoutdp" || name_ == "layoutcp" || has(name_, "parallelsize");
    if (has(name_, "microbatch") || has(name_, "batchmicro") || has(name_, "batchsize") || name_ == "mbs" ||
        name_ == "mb" || has(name_, "sequencelength") || has(name_, "seqlen"))
      powers(factors, 0, 1);
    else if (axis || has(name_, "tensorparallel") || has(name_, "pipelineparallel"))
      parallel(factors, draw);
    else if (has(name_, "recompute") || has(name_, "checkpointing"))
      recompute(factors, draw);
    else if (has(name_, "zero") || has(name_, "shard") || has(name_, "offload"))
      sharding(factors, draw);
    else if (has(name_, "precision") || has(name_, "dtype"))
      precision(factors, draw);
    else
      unknown(factors, draw);
    return factors;
  }

 private:
  void powers(Factors& factors, double states, double activations) const {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const double ratio = std::log(std::max(number_or(values_[i], 1), 1e-3));
      factors.states[i] += states * ratio;
      factors.activations[i] += activations * ratio;
    }
  }
  void parallel(Factors& factors, Draw& draw) const {
    if (has(name_, "dp"))
      powers(factors, -draw.uniform(0, 0.5), 0);
    else if (has(name_, "pp") || has(name_, "pipeline"))
      powers(factors, -draw.uniform(0.7, 1), -draw.uniform(0, 0.4));
    else
      powers(factors, -draw.uniform(0.7, 1), -draw.uniform(0.3, 1));
  }
  void recompute(Factors& factors, Draw& draw) const {
    const double selective = std::log(draw.uniform(0.35, 0.75));
    const double full = std::log(draw.uniform(0.05, 0.25));
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const std::string word = to_lower(to_text(values_[i]));
      if (word == "selective") factors.activations[i] = selective;
      if (word == "full" || is_on(word)) factors.activations[i] = full;
    }
  }
  void sharding(Factors& factors, Draw& draw) const {
    const double first = draw.uniform(0.4, 0.85);
    const double second = first * draw.uniform(0.6, 0.95);
    const double stages[4] = {1, first, second, second * draw.uniform(0.1, 0.7)};
    const double on = draw.uniform(0.25, 0.8);
    const bool stage_numbers = has(name_, "zero");
    const double power = -draw.uniform(0.3, 1);
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const double number = number_or(values_[i], -1);
      if (number < 0) {
        if (is_on(to_lower(to_text(values_[i])))) factors.states[i] = std::log(on);
      } else if (stage_numbers) {
        factors.states[i] = std::log(stages[static_cast<std::size_t>(std::clamp(number, 0.0, 3.0))]);
      } else {
        factors.states[i] = power * std::log(std::max(number, 1.0));
      }
    }
  }
  void precision(Factors& factors, Draw& draw) const {
    const double wide = std::log(draw.uniform(1.3, 2));
    const double wide_states = std::log(draw.uniform(1, 1.5));
    const double narrow = std::log(draw.uniform(0.6, 0.95));
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const std::string word = to_lower(to_text(values_[i]));
      if (has(word, "32")) factors.activations[i] = wide, factors.states[i] = wide_states;
      if (has(word, "fp8")) factors.activations[i] = narrow;
    }
  }
  void unknown(Factors& factors, Draw& draw) const {
    const bool harmless = has(name_, "nccl") || has(name_, "accum") || has(name_, "workers") ||
                          has(name_, "prefetch") || has(name_, "thread") || has(name_, "channel") ||
                          has(name_, "bucket") || has(name_, "pin");
    const double deviation = harmless ? 0.06 : 0.3;
    const double slope = draw.normal(deviation);
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (knob_.ordered)
        factors.activations[i] = slope * static_cast<double>(i) / static_cast<double>(values_.size());
      else
        factors.activations[i] = draw.normal(deviation);
    }
  }

  const Knob& knob_;
  std::span<const Value> values_;
  std::string name_;
};

// The values that stand for a knob: all of them, or a grid.
std::vector<Value> slot_values(const Knob& knob) {
  if (knob.kind == KnobKind::kChoice) return knob.choices;
  std::vector<Value> values;
  const bool whole = knob.kind == KnobKind::kInteger;
  const double span = knob.high - knob.low;
  const std::size_t count = whole && span < kGrid ? static_cast<std::size_t>(span) + 1 : kGrid;
  for (std::size_t i = 0; i < count; ++i) {
    const double share = count > 1 ? static_cast<double>(i) / static_cast<double>(count - 1) : 0;
    const double at =
        knob.log && knob.low > 0 ? knob.low * std::pow(knob.high / knob.low, share) : knob.low + share * span;
    if (whole)
      values.emplace_back(static_cast<std::int64_t>(std::llround(at)));
    else
      values.emplace_back(at);
  }
  return values;
}

double normal_cumulative(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

}  // namespace

MemorySketch::MemorySketch(const Space& space, std::span<const Point> points) : space_(space) {
  std::vector<std::vector<Value>> values;
  std::size_t slots_total = 0;
  for (const Knob& knob : space.knobs()) {
    values.push_back(slot_values(knob));
    first_slot_.push_back(slots_total);
    slots_total += values.back().size();
    levels_.emplace_back();
    if (knob.kind != KnobKind::kChoice)
      for (const Value& value : values.back()) levels_.back().push_back(number_or(value, 0));
  }
  const std::vector<std::size_t> usual = slots(space.default_config());
  std::vector<std::vector<std::size_t>> seen;
  for (const Point& point : points) seen.push_back(slots(point.config));

  Draw draw(0xace);
  std::vector<Guess> drawn(kDraws);
  std::vector<double> weights(kDraws);
  double largest = -1e300;
  for (int n = 0; n < kDraws; ++n) {
    Guess& guess = drawn[static_cast<std::size_t>(n)];
    for (std::size_t i = 0; i < space.size(); ++i) {
      const Factors factors = FactorDraw(space.knobs()[i], values[i])(draw);
      guess.states.insert(guess.states.end(), factors.states.begin(), factors.states.end());
      guess.activations.insert(guess.activations.end(), factors.activations.begin(), factors.activations.end());
    }
    for (const std::size_t s : usual) {
      guess.log_states -= guess.states[s];
      guess.log_activations -= guess.activations[s];
    }
    // The default fits: all it needs is between a twentieth of the memory and nearly all of it.
    const double log_total = draw.uniform(std::log(0.04), 0.0);
    const double share = draw.uniform(0.02, 0.98);
    guess.log_states += log_total + std::log(share);
    guess.log_activations += log_total + std::log(1 - share);
    double weight = 0;
    for (std::size_t p = 0; p < seen.size(); ++p) {
      const double z = -log_memory(guess, seen[p]) / kSharpness;
      weight += std::log(0.02 + 0.98 * normal_cumulative(points[p].fits ? z : -z));
    }
    weights[static_cast<std::size_t>(n)] = weight;
    largest = std::max(largest, weight);
  }
  // Systematic resampling: draws that agree with the trials, in proportion to their weight.
  double total = 0;
  for (double& weight : weights) total += weight = std::exp(weight - largest);
  double position = 0.5 * total / kKept, sum = 0;
  for (std::size_t n = 0; n < weights.size() && guesses_.size() < kKept; ++n) {
    sum += weights[n];
    for (; position < sum && guesses_.size() < kKept; position += total / kKept) guesses_.push_back(drawn[n]);
  }
}

std::size_t MemorySketch::slot(std::size_t knob, const Value& value) const {
  if (levels_[knob].empty()) {
    const std::vector<Value>& choices = space_.knobs()[knob].choices;
    return first_slot_[knob] +
           static_cast<std::size_t>(std::find(choices.begin(), choices.end(), value) - choices.begin());
  }
  const std::vector<double>& levels = levels_[knob];
  const double number = number_or(value, levels.front());
  std::size_t nearest = 0;
  for (std::size_t i = 1; i < levels.size(); ++i)
    if (std::fabs(levels[i] - number) < std::fabs(levels[nearest] - number)) nearest = i;
  return first_slot_[knob] + nearest;
}

std::vector<std::size_t> MemorySketch::slots(const Config& config) const {
  std::vector<std::size_t> list;
  for (std::size_t i = 0; i < space_.size(); ++i)
    if (is_active(config.values[i])) list.push_back(slot(i, config.values[i]));
  return list;
}

double MemorySketch::log_memory(const Guess& guess, std::span<const std::size_t> slots) const {
  double states = guess.log_states, activations = guess.log_activations;
  for (const std::size_t s : slots) {
    states += guess.states[s];
    activations += guess.activations[s];
  }
  const double high = std::max(states, activations), low = std::min(states, activations);
  return high + std::log1p(std::exp(low - high));
}

double MemorySketch::fits(const Config& config) const {
  const std::vector<std::size_t> list = slots(config);
  double sum = 0;
  for (const Guess& guess : guesses_) sum += normal_cumulative(-log_memory(guess, list) / kSharpness);
  return sum / static_cast<double>(guesses_.size());
}

}  // namespace lockstep::tune
