#include "lockstep/tune/study/trial.h"

#include <fmt/format.h>

#include <array>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"

namespace lockstep::tune {
namespace {

constexpr std::array kOutcomes{"measured", "oom", "invalid", "timeout", "hang", "crash"};
constexpr std::array kPurposes{"baseline", "explore", "replicate", "confirm", "control", "set_back"};

template <class Enum, std::size_t N>
Enum parse_word(const std::string& word, const std::array<const char*, N>& words, const JsonReader& reader,
                const std::string& key) {
  for (std::size_t i = 0; i < N; ++i)
    if (word == words[i]) return static_cast<Enum>(i);
  reader.fail(key, fmt::format("`{}` is not known", printable(word)),
              did_you_mean(word, std::vector<std::string>(words.begin(), words.end())));
}

}  // namespace

const char* to_string(Outcome outcome) { return kOutcomes[static_cast<std::size_t>(outcome)]; }
const char* to_string(Purpose purpose) { return kPurposes[static_cast<std::size_t>(purpose)]; }

nlohmann::json to_json(const Trial& trial, const Space& space) {
  nlohmann::json document{{"trial", trial.number},
                          {"config", space.to_json(trial.config)},
                          {"purpose", to_string(trial.purpose)},
                          {"budget_seconds", trial.budget_seconds},
                          {"outcome", to_string(trial.outcome)},
                          {"samples", trial.samples},
                          {"throughput", trial.throughput},
                          {"relative_error", trial.relative_error},
                          {"stopped_early", trial.stopped_early},
                          {"seconds", trial.seconds},
                          {"gpu_seconds", trial.gpu_seconds},
                          {"started_at", trial.started_at}};
  if (!trial.set_back_knob.empty()) document["set_back"] = trial.set_back_knob;
  if (!trial.message.empty()) document["message"] = trial.message;
  return document;
}

Trial trial_from_json(const nlohmann::json& document, const Space& space, const std::string& name_for_errors) {
  const JsonReader reader(document, name_for_errors);
  Trial trial;
  trial.number = reader.integer("trial", 0);
  trial.config = space.from_json(reader.object("config").value(), name_for_errors);
  trial.purpose = parse_word<Purpose>(reader.text("purpose"), kPurposes, reader, "purpose");
  trial.set_back_knob = reader.text("set_back", "");
  trial.budget_seconds = reader.real("budget_seconds");
  trial.outcome = parse_word<Outcome>(reader.text("outcome"), kOutcomes, reader, "outcome");
  for (const auto& sample : reader.array("samples")) {
    if (!sample.is_number()) reader.fail("samples", "has something that is not a number", "give throughputs");
    trial.samples.push_back(sample.get<double>());
  }
  trial.throughput = reader.real("throughput");
  trial.relative_error = reader.real("relative_error");
  trial.stopped_early = reader.boolean_or("stopped_early", false);
  trial.seconds = reader.real("seconds");
  trial.gpu_seconds = reader.real("gpu_seconds");
  trial.started_at = reader.real_or("started_at", 0);
  trial.message = reader.text("message", "");
  return trial;
}

}  // namespace lockstep::tune
