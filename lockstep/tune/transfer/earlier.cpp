#include "lockstep/tune/transfer/earlier.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::tune {
namespace {

constexpr double kNearEnough = 0.1;  // of the knob's range, in its scale

std::optional<double> number_in(const nlohmann::json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1.0 : 0.0;
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  try {
    return parse_real(value.get<std::string>());
  } catch (const UserError&) {
    return std::nullopt;
  }
}

std::optional<double> number_in(const Value& value) {
  if (const auto* truth = std::get_if<bool>(&value)) return *truth ? 1.0 : 0.0;
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return static_cast<double>(*integer);
  if (const auto* real = std::get_if<double>(&value)) return *real;
  return std::nullopt;
}

double scaled(const Knob& knob, double number) {
  return knob.log && number > 0 && knob.low > 0 ? std::log(number) : number;
}

std::string word_of(const nlohmann::json& value) {
  return to_lower(value.is_string() ? value.get<std::string>() : value.dump());
}

// The choice that is the same word, else the nearest number.
nlohmann::json level_of_choice(const Knob& knob, const nlohmann::json& told) {
  for (const Value& choice : knob.choices)
    if (to_json(choice) == told || to_lower(to_text(choice)) == word_of(told)) return to_json(choice);
  const std::optional<double> number = number_in(told);
  if (!number || !knob.ordered) return nullptr;
  double low = INFINITY, high = -INFINITY, distance = INFINITY;
  const Value* nearest = nullptr;
  const bool ratios = knob.log && *number > 0;
  const auto place = [&](double value) { return ratios && value > 0 ? std::log(value) : value; };
  for (const Value& choice : knob.choices) {
    const double at = place(number_in(choice).value_or(0));
    low = std::min(low, at), high = std::max(high, at);
    if (std::abs(at - place(*number)) >= distance) continue;
    distance = std::abs(at - place(*number));
    nearest = &choice;
  }
  return nearest != nullptr && distance <= kNearEnough * (high - low) ? to_json(*nearest) : nlohmann::json();
}

// null: the knob has no such level.
nlohmann::json level_of(const Knob& knob, const nlohmann::json& told) {
  if (knob.kind == KnobKind::kChoice) return level_of_choice(knob, told);
  std::optional<double> number = number_in(told);
  if (!number) return nullptr;
  const double room = kNearEnough * (scaled(knob, knob.high) - scaled(knob, knob.low));
  const double at = scaled(knob, *number);
  if (at < scaled(knob, knob.low) - room || at > scaled(knob, knob.high) + room) return nullptr;
  number = std::clamp(*number, knob.low, knob.high);
  if (knob.kind == KnobKind::kInteger) return std::llround(*number);
  return *number;
}

std::optional<Config> place(const Space& space, const nlohmann::json& told) {
  nlohmann::json document = nlohmann::json::object();
  for (const Knob& knob : space.knobs()) {
    const auto entry = told.find(knob.name);
    const bool known = entry != told.end() && !entry->is_null();
    document[knob.name] = known ? level_of(knob, *entry) : to_json(knob.default_value);
    if (document[knob.name].is_null()) return std::nullopt;
  }
  try {
    Config config = space.from_json(document, "earlier study");
    if (space.is_valid(config)) return config;
  } catch (const UserError&) {  // a combination that this space does not have
  }
  return std::nullopt;
}

void make_relative(std::vector<Trial>& trials) {
  std::vector<double> ran;
  for (const Trial& trial : trials)
    if (measured(trial)) ran.push_back(trial.throughput);
  if (ran.empty()) return;
  const auto middle = ran.begin() + static_cast<std::ptrdiff_t>(ran.size() / 2);
  std::nth_element(ran.begin(), middle, ran.end());
  for (Trial& trial : trials) trial.throughput /= *middle;
}

}  // namespace

EarlierStudy earlier_of(const StoredStudy& study) {
  EarlierStudy earlier;
  earlier.name = study.id();
  for (const Trial& trial : study.trials)
    earlier.trials.push_back({study.space.to_json(trial.config), trial.outcome, trial.throughput, trial.message});
  return earlier;
}

std::optional<EarlierStudy> read_earlier_file(const std::string& source) {
  const std::size_t hash = source.rfind('#');
  const std::string file = source.substr(0, hash);
  const std::string kind = to_lower(std::filesystem::path(file).extension().string());
  if (kind == ".db" || kind == ".sqlite" || kind == ".sqlite3")
    return read_optuna_storage(file, hash == std::string::npos ? "" : source.substr(hash + 1));
  if (kind == ".csv" || kind == ".json") return read_trial_table(file);
  return std::nullopt;
}

std::vector<Trial> place_trials(const Space& space, const EarlierStudy& study) {
  std::vector<Trial> placed;
  for (const EarlierTrial& told : study.trials) {
    const bool usable = told.outcome != Outcome::kMeasured || (std::isfinite(told.throughput) && told.throughput > 0);
    std::optional<Config> config = usable && told.config.is_object() ? place(space, told.config) : std::nullopt;
    if (!config) continue;
    Trial trial;
    trial.number = static_cast<std::int64_t>(placed.size());
    trial.config = std::move(*config);
    trial.outcome = told.outcome;
    trial.throughput = measured(trial) ? told.throughput : 0;
    trial.message = told.message;
    placed.push_back(std::move(trial));
  }
  make_relative(placed);
  return placed;
}

}  // namespace lockstep::tune
