#include "bench/tune/surface.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <regex>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::bench {
namespace {

constexpr double kLaunchDeviation = 0.028;
constexpr double kSampleDeviation = 0.02;
constexpr double kSampleCorrelation = 0.3;
constexpr int kSamples = 5;
constexpr double kMemoryDoubt = 0.12;  // of the planner, in log memory

std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 0;
  for (unsigned char c : text) hash = mix(hash ^ c);
  return hash;
}

std::string yaml_of(const tune::Value& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const std::int64_t* number = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *number);
  return std::get<std::string>(value);
}

nlohmann::json json_value(const tune::Value& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag;
  if (const std::int64_t* number = std::get_if<std::int64_t>(&value)) return *number;
  return std::get<std::string>(value);
}

const char* written_name(SurfaceKnob::Written written) {
  switch (written) {
    case SurfaceKnob::Written::kInt:
      return "int";
    case SurfaceKnob::Written::kLogInt:
      return "log_int";
    case SurfaceKnob::Written::kChoices:
      break;
  }
  return "choices";
}

std::string range_yaml(const SurfaceKnob& knob) {
  if (knob.written == SurfaceKnob::Written::kChoices) {
    std::string text;
    for (const tune::Value& level : knob.levels) text += fmt::format("{}{}", text.empty() ? "" : ", ", yaml_of(level));
    return fmt::format("choices: [{}]", text);
  }
  return fmt::format("{}: [{}, {}]", written_name(knob.written), yaml_of(knob.levels.front()),
                     yaml_of(knob.levels.back()));
}

double normal_distribution(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

}  // namespace

std::vector<tune::Value> levels_of(std::initializer_list<std::int64_t> numbers) {
  return {numbers.begin(), numbers.end()};
}

std::vector<tune::Value> levels_of(std::initializer_list<const char*> words) {
  std::vector<tune::Value> levels;
  for (const char* word : words) levels.emplace_back(std::string(word));
  return levels;
}

std::vector<tune::Value> levels_between(std::int64_t low, std::int64_t high) {
  std::vector<tune::Value> levels;
  for (std::int64_t number = low; number <= high; ++number) levels.emplace_back(number);
  return levels;
}

std::vector<tune::Value> levels_bool() { return {false, true}; }

double number_of(const tune::Value& value) { return static_cast<double>(std::get<std::int64_t>(value)); }

Surface::Surface(std::string kind, int instance)
    : kind_(std::move(kind)),
      instance_(instance),
      seed_(key_of({hash_of(kind_), static_cast<std::uint64_t>(instance)})) {}

int Surface::add_knob(SurfaceKnob knob) {
  knobs_.push_back(std::move(knob));
  return static_cast<int>(knobs_.size()) - 1;
}

std::string Surface::space_yaml() const {
  std::string text = "knobs:\n";
  for (const SurfaceKnob& knob : knobs_) {
    text += fmt::format("  {}: {{{}", knob.name, range_yaml(knob));
    if (tells_defaults_)
      text += fmt::format(", default: {}", yaml_of(knob.levels[static_cast<std::size_t>(knob.default_level)]));
    if (!knob.when.empty()) text += fmt::format(", when: '{}'", knob.when);
    text += "}\n";
  }
  std::string constraints;
  for (const SurfaceRule& rule : rules_) {
    if (!rule.text.empty()) constraints += fmt::format("{}\"{}\"", constraints.empty() ? "" : ", ", rule.text);
  }
  if (!constraints.empty()) text += fmt::format("constraints: [{}]\n", constraints);
  if (!nccl_facts_yaml_.empty()) text += nccl_facts_yaml_ + "\n";
  return text;
}

void Surface::hide_names() {
  // A word is hidden by the same code wherever it stands; longer ones first would not matter, as whole words are
  // replaced.
  std::vector<std::pair<std::string, std::string>> codes;
  for (SurfaceKnob& knob : knobs_) {
    codes.emplace_back(fmt::format("\\b{}\\b", knob.name), fmt::format("k{}", codes.size()));
    knob.name = codes.back().second;
  }
  std::map<std::string, std::string> words;
  for (SurfaceKnob& knob : knobs_) {
    for (tune::Value& level : knob.levels) {
      if (std::string* word = std::get_if<std::string>(&level))
        *word = words.try_emplace(*word, fmt::format("w{}", words.size())).first->second;
    }
  }
  const auto hide = [&](std::string& text) {
    for (const auto& [word, code] : words)
      text = std::regex_replace(text, std::regex("\"" + word + "\""), "\"" + code + "\"");
    for (const auto& [name, code] : codes) text = std::regex_replace(text, std::regex(name), code);
  };
  for (SurfaceKnob& knob : knobs_) hide(knob.when);
  for (SurfaceRule& rule : rules_) hide(rule.text);
  nccl_facts_yaml_.clear();
  names_hidden_ = true;
}

double Surface::combinations() const {
  double product = 1;
  for (const SurfaceKnob& knob : knobs_) product *= static_cast<double>(knob.levels.size());
  return product;
}

Point Surface::default_point() const {
  Point point(knobs_.size(), -1);
  for (std::size_t k = 0; k < knobs_.size(); ++k) {
    if (is_active(k, point)) point[k] = knobs_[k].default_level;
  }
  return point;
}

bool Surface::is_active(std::size_t knob, PointView levels) const {
  const SurfaceKnob& entry = knobs_[knob];
  if (entry.parent < 0) return true;
  return std::ranges::find(entry.parent_levels, levels[static_cast<std::size_t>(entry.parent)]) !=
         entry.parent_levels.end();
}

bool Surface::obeys_rules(PointView levels) const {
  return std::ranges::all_of(rules_, [&](const SurfaceRule& rule) { return rule.holds(levels); });
}

SurfaceTruth Surface::at(PointView levels) const {
  // What refuses its arguments ends at once; what runs out of memory does so in its first steps.
  constexpr double kRefusalSeconds = 10;
  if (!obeys_rules(levels)) return {.outcome = tune::Outcome::kInvalid, .launch_seconds = kRefusalSeconds};
  const Prediction prediction = predict(levels, false);
  if (prediction.refused) return {.outcome = tune::Outcome::kInvalid, .launch_seconds = kRefusalSeconds};
  if (prediction.memory > capacity_) return {.outcome = tune::Outcome::kOutOfMemory};
  return {.throughput = scale_ / prediction.step_seconds};
}

double Surface::log_drift(std::uint64_t, std::int64_t) const { return 0; }

SurfaceMeasurement Surface::measure(PointView levels, std::uint64_t noise_seed, std::int64_t trial) const {
  SurfaceTruth truth = at(levels);
  SurfaceMeasurement measurement{
      .outcome = truth.outcome, .samples = {}, .seconds = truth.launch_seconds, .message = std::move(truth.message)};
  if (truth.outcome != tune::Outcome::kMeasured) return measurement;
  const std::uint64_t key = key_of({seed_, 0x6e6f697365, noise_seed, static_cast<std::uint64_t>(trial)});
  constexpr double kMeanShift = 0.5 * (kLaunchDeviation * kLaunchDeviation + kSampleDeviation * kSampleDeviation);
  const double launch = kLaunchDeviation * normal_at(key_of({key, 0})) + log_drift(noise_seed, trial);
  double within = kSampleDeviation * normal_at(key_of({key, 1}));
  for (int sample = 0; sample < kSamples; ++sample) {
    if (sample > 0) {
      const double fresh = std::sqrt(1 - kSampleCorrelation * kSampleCorrelation) * kSampleDeviation;
      within = kSampleCorrelation * within + fresh * normal_at(key_of({key, static_cast<std::uint64_t>(sample) + 1}));
    }
    measurement.samples.push_back(truth.throughput * std::exp(launch + within - kMeanShift));
    measurement.seconds += truth.sample_seconds;
  }
  return measurement;
}

tune::Belief Surface::believe(PointView levels) const {
  const Prediction prediction = predict(levels, true);
  const double room = std::log(capacity_ / prediction.memory) / kMemoryDoubt;
  return {.log_throughput = -std::log(prediction.step_seconds), .fits_probability = normal_distribution(room)};
}

void Surface::for_each(const std::function<void(PointView)>& visit) const {
  // Rules are tested as soon as the last knob they name has its level.
  std::vector<std::vector<const SurfaceRule*>> due(knobs_.size());
  for (const SurfaceRule& rule : rules_) due[static_cast<std::size_t>(std::ranges::max(rule.knobs))].push_back(&rule);
  Point point(knobs_.size(), -1);
  auto descend = [&](auto&& self, std::size_t knob) -> void {
    if (knob == knobs_.size()) return visit(point);
    const bool active = is_active(knob, point);
    const int levels = active ? static_cast<int>(knobs_[knob].levels.size()) : 1;
    for (int level = 0; level < levels; ++level) {
      point[knob] = active ? level : -1;
      if (std::ranges::all_of(due[knob], [&](const SurfaceRule* rule) { return rule->holds(point); }))
        self(self, knob + 1);
    }
    point[knob] = -1;
  };
  descend(descend, 0);
}

Point Surface::draw(Draws& draws, bool rules) const {
  Point point(knobs_.size(), -1);
  do {
    for (std::size_t k = 0; k < knobs_.size(); ++k) {
      const int level = draws.below(static_cast<int>(knobs_[k].levels.size()));
      point[k] = is_active(k, point) ? level : -1;
    }
  } while (rules && !obeys_rules(point));
  return point;
}

void Surface::fit_memory(double share) {
  constexpr int kDraws = 4000;
  Draws draws(key_of({seed_, 0x6d656d}));
  std::vector<double> memory;
  for (int n = 0; n < kDraws; ++n) memory.push_back(predict(draw(draws, true), false).memory);
  std::ranges::sort(memory);
  const Prediction at_default = predict(default_point(), false);
  capacity_ = std::max(memory[static_cast<std::size_t>((1 - share) * kDraws)], 1.02 * at_default.memory);
  scale_ = at_default.step_seconds * draws.log_uniform(2e3, 2e5);
}

Point Surface::point_of(const tune::Config& config) const {
  Point point(knobs_.size(), -1);
  for (std::size_t k = 0; k < knobs_.size(); ++k) {
    if (!tune::is_active(config.values[k])) continue;
    const auto found = std::ranges::find(knobs_[k].levels, config.values[k]);
    if (found == knobs_[k].levels.end())
      throw UserError(ExitCode::kUsage, fmt::format("{}: no such level", knobs_[k].name));
    point[k] = static_cast<int>(found - knobs_[k].levels.begin());
  }
  return point;
}

Point Surface::point_of(const nlohmann::json& config) const {
  Point point(knobs_.size(), -1);
  for (std::size_t k = 0; k < knobs_.size(); ++k) {
    const SurfaceKnob& knob = knobs_[k];
    if (!is_active(k, point)) continue;
    const auto found = std::ranges::find_if(knob.levels, [&](const tune::Value& level) {
      return config.contains(knob.name) && json_value(level) == config[knob.name];
    });
    if (found == knob.levels.end())
      throw UserError(ExitCode::kUsage, fmt::format("{} is missing or has no such level", knob.name));
    point[k] = static_cast<int>(found - knob.levels.begin());
  }
  return point;
}

tune::Config Surface::config_of(PointView levels) const {
  tune::Config config;
  for (std::size_t k = 0; k < knobs_.size(); ++k) {
    config.values.push_back(levels[k] < 0 ? tune::Value{} : knobs_[k].levels[static_cast<std::size_t>(levels[k])]);
  }
  return config;
}

nlohmann::json Surface::json_of(PointView levels) const {
  nlohmann::json document = nlohmann::json::object();
  for (std::size_t k = 0; k < knobs_.size(); ++k) {
    if (levels[k] >= 0) document[knobs_[k].name] = json_value(knobs_[k].levels[static_cast<std::size_t>(levels[k])]);
  }
  return document;
}

nlohmann::json Surface::describe() const {
  nlohmann::json document{{"kind", kind_}, {"instance", instance_}};
  for (const SurfaceKnob& knob : knobs_) {
    nlohmann::json entry{{"name", knob.name}, {"written", written_name(knob.written)}};
    if (tells_defaults_) entry["default"] = knob.default_level;
    for (const tune::Value& level : knob.levels) entry["levels"].push_back(json_value(level));
    entry["ordered"] = std::holds_alternative<std::int64_t>(knob.levels.front());
    if (knob.parent >= 0) {
      entry["parent"] = knobs_[static_cast<std::size_t>(knob.parent)].name;
      entry["parent_levels"] = knob.parent_levels;
    }
    document["knobs"].push_back(std::move(entry));
  }
  // Each rule as the list of level tuples that it allows.
  document["rules"] = nlohmann::json::array();
  for (const SurfaceRule& rule : rules_) {
    nlohmann::json entry{{"text", rule.text}, {"allowed", nlohmann::json::array()}};
    for (int knob : rule.knobs) entry["knobs"].push_back(knobs_[static_cast<std::size_t>(knob)].name);
    Point point(knobs_.size(), -1);
    auto descend = [&](auto&& self, std::size_t position) -> void {
      if (position == rule.knobs.size()) {
        if (!rule.holds(point)) return;
        nlohmann::json tuple = nlohmann::json::array();
        for (int knob : rule.knobs) tuple.push_back(point[static_cast<std::size_t>(knob)]);
        entry["allowed"].push_back(std::move(tuple));
        return;
      }
      const auto knob = static_cast<std::size_t>(rule.knobs[position]);
      for (int level = 0; level < static_cast<int>(knobs_[knob].levels.size()); ++level) {
        point[knob] = level;
        self(self, position + 1);
      }
    };
    descend(descend, 0);
    document["rules"].push_back(std::move(entry));
  }
  return document;
}

}  // namespace lockstep::bench
