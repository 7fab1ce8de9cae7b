#include <fmt/format.h>

#include "lockstep/base/text.h"
#include "lockstep/report/study/figures.h"
#include "lockstep/report/study/text.h"

namespace lockstep::report {

using nlohmann::json;

double StudySpending::total() const {
  return search.gpu_seconds + confirm.gpu_seconds + set_backs.gpu_seconds + failures.gpu_seconds + cut_off.gpu_seconds;
}

StudySpending spending_of(const tune::StoredStudy& study) {
  StudySpending spent;
  for (const tune::Trial& trial : study.trials) {
    StudySpending::Share& share = !measured(trial)                           ? spent.failures
                                  : is_search(trial.purpose)                 ? spent.search
                                  : trial.purpose == tune::Purpose::kSetBack ? spent.set_backs
                                                                             : spent.confirm;
    ++share.trials;
    share.gpu_seconds += trial.gpu_seconds;
  }
  spent.cut_off = {study.interrupted, study.interrupted_gpu_seconds};
  return spent;
}

json study_json(const tune::StoredStudy& study, const tune::Conclusion& conclusion) {
  json document = tune::to_json(conclusion, study.space);
  document["schema"] = "lockstep.study/1";
  const telemetry::StudyRow& row = study.row;
  document["study"] = {{"id", row.info.id},
                       {"name", row.info.name},
                       {"status", to_string(row.status)},
                       {"created_at", row.info.created_at},
                       {"ended_at", row.ended_at > 0 ? json(row.ended_at) : json()},
                       {"host", row.info.host},
                       {"versions", row.info.versions},
                       {"unit", study.setup.unit},
                       {"options", to_json(study.setup)},
                       {"interrupted", study.interrupted}};
  document["space"] = row.info.space_yaml;
  const StudySpending spent = spending_of(study);
  document["spent"] = {{"search", spent.search.gpu_seconds},       {"confirm", spent.confirm.gpu_seconds},
                       {"set_backs", spent.set_backs.gpu_seconds}, {"failures", spent.failures.gpu_seconds},
                       {"cut_off", spent.cut_off.gpu_seconds},     {"total", spent.total()}};
  document["history"] = json::array();
  for (const tune::Trial& trial : study.trials) document["history"].push_back(to_json(trial, study.space));
  return document;
}

std::string study_list_text(const std::vector<telemetry::StudyRow>& studies, const TerminalStyle& style) {
  if (studies.empty()) return "no studies yet; begin one with `lockstep tune`\n";
  std::vector<std::vector<std::string>> rows{{"study", "status", "trials", "failed", "spent", "started (UTC)"}};
  for (const telemetry::StudyRow& study : studies) {
    rows.push_back({printable(study.info.id, 100), to_string(study.status), std::to_string(study.trials),
                    std::to_string(study.failed), gpu_time(study.gpu_seconds), moment(study.info.created_at)});
  }
  return table(rows, {2, 3, 4}, 0, style);
}

json study_list_json(const std::vector<telemetry::StudyRow>& studies) {
  json rows = json::array();
  for (const telemetry::StudyRow& study : studies) {
    rows.push_back({{"id", study.info.id},
                    {"name", study.info.name},
                    {"status", to_string(study.status)},
                    {"trials", study.trials},
                    {"failed", study.failed},
                    {"gpu_seconds", study.gpu_seconds},
                    {"created_at", study.info.created_at},
                    {"ended_at", study.ended_at > 0 ? json(study.ended_at) : json()},
                    {"host", study.info.host}});
  }
  return {{"schema", "lockstep.studies/1"}, {"studies", rows}};
}

}  // namespace lockstep::report
