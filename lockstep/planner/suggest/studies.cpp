#include "lockstep/planner/suggest/studies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/spec/job.h"
#include "lockstep/spec/presets.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/study_store.h"

namespace lockstep::planner {
namespace {

using nlohmann::json;

constexpr double kAlike = 2;         // factor in parameters
constexpr double kLeastPercent = 1;  // that reverting a knob costs
constexpr std::size_t kNewestStudies = 50;

const json& at(const json& object, const char* key) {
  static const json kNothing;
  if (!object.is_object()) return kNothing;
  const auto found = object.find(key);
  return found == object.end() ? kNothing : *found;
}

double number(const json& value) { return value.is_number() ? value.get<double>() : std::nan(""); }

std::string text_of(const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

std::optional<spec::Job> job_of(const json& evaluator) {
  try {
    const json& text = at(evaluator, "job_yaml");
    if (text.is_string()) return spec::parse_job(text.get<std::string>(), "study");
    const json& job = at(evaluator, "job");
    if (!job.is_string()) return std::nullopt;
    const auto name = job.get<std::string>();
    if (name.find('\n') != std::string::npos) return spec::parse_job(name, "study");
    if (std::filesystem::exists(name)) return spec::load_job(name);
    if (const auto* preset = spec::find_embedded(spec::embedded_jobs(), name)) {
      return spec::parse_job(std::string(preset->text), name);
    }
  } catch (const UserError&) {
    // A job of another version says nothing; the study is passed over.
  }
  return std::nullopt;
}

}  // namespace

std::optional<StudiedJob> studied_job(const json& options) {
  const json& about = at(options, "about");
  if (about.is_object()) {
    const double parameters = number(at(about, "parameters")), gpus = number(at(about, "gpus"));
    if (!(parameters > 0) || !(gpus >= 1) || !at(about, "gpu").is_string()) return std::nullopt;
    StudiedJob job{parameters, at(about, "gpu").get<std::string>(), static_cast<std::int64_t>(gpus)};
    if (const double length = number(at(about, "sequence_length")); length >= 1)
      job.sequence_length = static_cast<std::int64_t>(length);
    if (at(about, "adapters").is_boolean()) job.adapters = at(about, "adapters").get<bool>();
    return job;
  }
  const std::optional<spec::Job> job = job_of(at(options, "evaluator"));
  if (!job || job->cluster.groups.size() != 1) return std::nullopt;
  return StudiedJob{static_cast<double>(spec::parameter_count(job->model)), job->cluster.groups.front().device.kind,
                    job->cluster.devices(), job->batch.sequence_length, job->lora.rank > 0};
}

bool is_alike(const StudiedJob& studied, const Suggestion& suggestion, std::int64_t sequence_length) {
  if (studied.sequence_length > 0 && studied.sequence_length != sequence_length) return false;
  if (studied.adapters && *studied.adapters != (suggestion.lora.rank > 0)) return false;
  const double ratio = studied.parameters / static_cast<double>(spec::parameter_count(suggestion.model));
  return ratio <= kAlike && ratio >= 1 / kAlike && studied.gpus == suggestion.cluster.devices() &&
         studied.gpu == suggestion.cluster.groups.front().device.kind;
}

std::vector<StudiedKnob> knobs_that_matter(const std::string& study, const json& conclusion) {
  std::vector<StudiedKnob> knobs;
  const json& config = at(at(conclusion, "best"), "config");
  const json& importance = at(conclusion, "importance");
  if (!config.is_object() || !importance.is_array()) return knobs;
  for (const json& entry : importance) {
    const json& cost = at(entry, "set_back_percent");
    if (!at(entry, "knob").is_string() || !cost.is_object()) continue;
    StudiedKnob knob{.study = study,
                     .knob = at(entry, "knob").get<std::string>(),
                     .percent = number(at(cost, "value")),
                     .low = number(at(cost, "low")),
                     .high = number(at(cost, "high"))};
    if (!config.contains(knob.knob) || !(knob.percent >= kLeastPercent) || !(knob.low > 0)) continue;
    knob.value = text_of(config.at(knob.knob));
    knobs.push_back(std::move(knob));
  }
  std::stable_sort(knobs.begin(), knobs.end(),
                   [](const StudiedKnob& a, const StudiedKnob& b) { return a.percent > b.percent; });
  return knobs;
}

std::vector<StudiedKnob> studied_knobs(const std::filesystem::path& home, Suggestion& suggestion,
                                       std::int64_t sequence_length) {
  std::error_code ignored;
  if (home.empty() || !std::filesystem::is_directory(home, ignored)) return {};
  try {
    const auto store = telemetry::open_study_store(home, /*create=*/false);
    for (const telemetry::StudyRow& row : store->studies(kNewestStudies)) {
      if (row.status != telemetry::RunStatus::kDone) continue;
      // A simulated study is the planner's own prediction: no evidence for what the planner proposes.
      if (at(at(row.info.options, "evaluator"), "kind") == "simulate") continue;
      const auto studied = studied_job(row.info.options);
      if (!studied || !is_alike(*studied, suggestion, sequence_length)) continue;
      return knobs_that_matter(row.info.id, row.conclusion);
    }
  } catch (const UserError& error) {
    if (error.code() != ExitCode::kEnvironment) {
      suggestion.warnings.push_back(fmt::format("stored studies were not read: {}", error.what()));
    }
  }
  return {};
}

}  // namespace lockstep::planner
