#include "lockstep/serve/study_values.h"

namespace lockstep::serve {
namespace {

using nlohmann::json;

json listed(const telemetry::StudyRow& row) {
  return {{"id", row.info.id},
          {"name", row.info.name},
          {"status", telemetry::to_string(row.status)},
          {"created_at", row.info.created_at},
          {"ended_at", row.ended_at > 0 ? json(row.ended_at) : json()},
          {"host", row.info.host},
          {"trials", row.trials},
          {"failed", row.failed},
          {"gpu_seconds", row.gpu_seconds},
          {"conclusion", row.conclusion}};
}

json trial(const telemetry::AttemptRow& attempt) {
  const json& document = attempt.document;
  return {{"trial", attempt.number},
          {"attempt", attempt.attempt},
          {"state", telemetry::to_string(attempt.state)},
          {"started_at", attempt.started_at},
          {"seconds", attempt.seconds},
          {"gpu_seconds", attempt.gpu_seconds},
          {"purpose", attempt.purpose},
          {"outcome", attempt.outcome.empty() ? json() : json(attempt.outcome)},
          {"throughput", attempt.throughput > 0 ? json(attempt.throughput) : json()},
          {"config", document.is_object() && document.contains("config") ? document["config"] : json::object()},
          {"message", document.is_object() && document.contains("message") ? document["message"] : json()}};
}

}  // namespace

json studies_json(const telemetry::StudyStore* store, std::size_t limit) {
  json list = json::array();
  if (store != nullptr) {
    for (const telemetry::StudyRow& row : store->studies(limit)) list.push_back(listed(row));
  }
  return {{"schema", "lockstep.api.studies/1"}, {"studies", std::move(list)}};
}

json study_json(const telemetry::StudyStore& store, const telemetry::StudyRow& row) {
  json study = listed(row), trials = json::array();
  study["space"] = row.info.space_yaml;
  study["options"] = row.info.options;
  study["versions"] = row.info.versions;
  for (const telemetry::AttemptRow& attempt : store.attempts(row.info.id)) trials.push_back(trial(attempt));
  return {{"schema", "lockstep.api.study/1"}, {"study", std::move(study)}, {"trials", std::move(trials)}};
}

}  // namespace lockstep::serve
