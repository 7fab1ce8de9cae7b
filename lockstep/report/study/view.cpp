#include "lockstep/report/study/view.h"

namespace lockstep::report {

StudyView view_of(const tune::StoredStudy& study, const tune::Conclusion& conclusion) {
  StudyView view{study.space, study.trials, conclusion};
  view.id = study.id();
  view.name = study.setup.name;
  view.unit = study.setup.unit;
  view.host = study.row.info.host;
  view.created_at = study.row.info.created_at;
  view.ended_at = study.row.status == telemetry::RunStatus::kDone ? study.row.ended_at : 0;
  view.seed = study.setup.strategy.seed;
  view.trials_allowed = study.setup.strategy.trials;
  view.gpu_seconds_allowed = study.setup.strategy.gpu_seconds;
  view.trial_seconds = study.setup.strategy.trial_seconds;
  view.usd_per_device_hour = study.setup.strategy.usd_per_device_hour;
  view.evaluator = study.setup.evaluator;
  view.versions = study.setup.versions;
  return view;
}

}  // namespace lockstep::report
