#include "lockstep/tune/objectives/objective.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::tune {
namespace {

constexpr const char* kFix =
    "write tokens_per_second,memory or tokens_per_second,dollars; other figures as min:NAME or max:NAME";

bool is_throughput_name(const std::string& word) {
  return word == "throughput" || word == "tokens_per_second" || word == "samples_per_second";
}

Objective parse_one(const std::string& word) {
  if (is_throughput_name(word)) return {word, "", Objective::Source::kThroughput, true};
  if (word == "memory") return {word, kDeviceMemoryValue, Objective::Source::kPrinted, false};
  if (word == "host_memory") return {word, kHostMemoryValue, Objective::Source::kPrinted, false};
  if (word == "dollars") return {word, "", Objective::Source::kDollars, false};
  const bool smallest = word.starts_with("min:"), largest = word.starts_with("max:");
  if ((!smallest && !largest) || word.size() == 4) {
    throw bad_input(fmt::format("--objective: `{}` is not known", printable(word)), kFix);
  }
  return {word.substr(4), word.substr(4), Objective::Source::kPrinted, largest};
}

std::string to_word(const Objective& objective) {
  if (objective.source != Objective::Source::kPrinted || objective.value != objective.name) return objective.name;
  return (objective.largest ? "max:" : "min:") + objective.name;
}

}  // namespace

std::vector<Objective> parse_objectives(const std::string& text) {
  std::vector<Objective> objectives;
  for (const std::string& part : split(text, ',')) {
    Objective objective = parse_one(std::string(trim(part)));
    const bool first = objective.source == Objective::Source::kThroughput;
    const auto same = [&](const Objective& other) {
      return other.name == objective.name || (first && other.source == objective.source);
    };
    if (std::any_of(objectives.begin(), objectives.end(), same))
      throw bad_input(fmt::format("--objective names {} twice", printable(objective.name)), "leave one out");
    objectives.insert(first ? objectives.begin() : objectives.end(), std::move(objective));
  }
  if (objectives.front().source != Objective::Source::kThroughput)
    objectives.insert(objectives.begin(), {"throughput", "", Objective::Source::kThroughput, true});
  if (objectives.size() > kMostObjectives)
    throw bad_input(fmt::format("--objective: {} objectives, and {} at most", objectives.size(), kMostObjectives),
                    "with more, nearly everything is on the front");
  return objectives;
}

std::string to_text(std::span<const Objective> objectives) {
  std::vector<std::string> words;
  for (const Objective& objective : objectives) words.push_back(to_word(objective));
  return join(words, ",");
}

std::vector<std::string> printed_values(std::span<const Objective> objectives) {
  std::vector<std::string> values;
  for (const Objective& objective : objectives)
    if (objective.source == Objective::Source::kPrinted) values.push_back(objective.value);
  return values;
}

std::optional<double> value_of(const Objective& objective, const Trial& trial, double usd_per_device_hour) {
  if (!measured(trial) || !(trial.throughput > 0)) return std::nullopt;
  double value = trial.throughput;
  if (objective.source == Objective::Source::kPrinted) {
    const auto found = trial.values.find(objective.value);
    if (found == trial.values.end()) return std::nullopt;
    value = found->second;
  } else if (objective.source == Objective::Source::kDollars) {
    const double devices = trial.seconds > 0 ? trial.gpu_seconds / trial.seconds : 1;
    value = devices * usd_per_device_hour / 3600 / trial.throughput * 1e6;
  }
  if (!std::isfinite(value) || value <= 0) return std::nullopt;
  return value;
}

std::vector<Trial> as_throughput(const Objective& objective, std::span<const Trial> trials,
                                 double usd_per_device_hour) {
  std::vector<Trial> seen;
  for (const Trial& trial : trials) {
    if (!measured(trial)) {
      seen.push_back(trial);
      continue;
    }
    const std::optional<double> value = value_of(objective, trial, usd_per_device_hour);
    if (!value) continue;
    seen.push_back(trial);
    seen.back().throughput = objective.largest ? *value : 1 / *value;
  }
  return seen;
}

}  // namespace lockstep::tune
