#include "lockstep/tune/study/trial.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"

namespace lockstep::tune {
namespace {

constexpr std::pair<const char*, double Trial::*> kFigures[] = {{"budget_seconds", &Trial::budget_seconds},
                                                                {"throughput", &Trial::throughput},
                                                                {"relative_error", &Trial::relative_error},
                                                                {"seconds", &Trial::seconds},
                                                                {"gpu_seconds", &Trial::gpu_seconds}};

template <NamedEnum E>
E read_name(const JsonReader& reader, const std::string& key) {
  const std::string word = reader.text(key);
  if (const auto value = value_named<E>(word)) return *value;
  constexpr auto kNames = names_of(E{});
  reader.fail(key, fmt::format("`{}` is not known", printable(word)),
              did_you_mean(word, {kNames.begin(), kNames.end()}));
}

}  // namespace

nlohmann::json to_json(const Trial& trial, const Space& space) {
  nlohmann::json document{{"trial", trial.number},
                          {"config", space.to_json(trial.config)},
                          {"purpose", to_string(trial.purpose)},
                          {"outcome", to_string(trial.outcome)},
                          {"samples", trial.samples},
                          {"stopped_early", trial.stopped_early},
                          {"started_at", trial.started_at}};
  for (const auto& [key, figure] : kFigures) document[key] = trial.*figure;
  if (!trial.set_back_knob.empty()) document["set_back"] = trial.set_back_knob;
  if (!trial.message.empty()) document["message"] = trial.message;
  if (!trial.values.empty()) document["values"] = trial.values;
  return document;
}

Trial trial_from_json(const nlohmann::json& document, const Space& space, const std::string& name_for_errors) {
  const JsonReader reader(document, name_for_errors);
  Trial trial;
  trial.number = reader.integer("trial", 0);
  trial.config = space.from_json(reader.object("config").value(), name_for_errors);
  trial.purpose = read_name<Purpose>(reader, "purpose");
  trial.set_back_knob = reader.text("set_back", "");
  trial.outcome = read_name<Outcome>(reader, "outcome");
  for (const auto& sample : reader.array("samples")) {
    if (!sample.is_number()) reader.fail("samples", "has something that is not a number", "give throughputs");
    trial.samples.push_back(sample.get<double>());
  }
  for (const auto& [key, figure] : kFigures) trial.*figure = reader.real(key);
  trial.stopped_early = reader.boolean_or("stopped_early", false);
  trial.started_at = reader.real_or("started_at", 0);
  trial.message = reader.text("message", "");
  if (const auto values = reader.object_or_none("values"))
    for (const auto& [name, value] : values->value().items()) trial.values[name] = values->real(name);
  return trial;
}

}  // namespace lockstep::tune
