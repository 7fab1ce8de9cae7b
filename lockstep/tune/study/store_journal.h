// Studies in the run store: a Journal that survives any kill, and everything needed to continue a study.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/telemetry/study_store.h"
#include "lockstep/tune/space/space.h"
#include "lockstep/tune/study/strategy.h"
#include "lockstep/tune/study/study.h"
#include "lockstep/tune/study/trial.h"

namespace lockstep::tune {

// The options of a study, besides its space.
struct StudySetup {
  std::string name;          // of the job, script or space
  StrategyOptions strategy;  // `prior` is not stored: on resume it is made again from `evaluator`
  // Whatever makes the evaluators (and the prior) again: {"kind": "command", "argv": [...], "environment": {...}, ...}.
  // The store keeps it as it is.
  nlohmann::json evaluator = nlohmann::json::object();
  nlohmann::json versions = nlohmann::json::object();  // "lockstep", "hardware", "nccl", "torch": strings, where known
  std::string unit = "tokens/s";                       // Evaluator::unit()
};

// What the time of a study is counted in: "GPU", or "rank" for jobs on processors. `evaluator` is a setup's.
std::string device_of(const nlohmann::json& evaluator);

nlohmann::json to_json(const StudySetup& setup);  // without name and versions, which have columns of their own
StudySetup study_setup_from_json(const nlohmann::json& document, const std::string& name_for_errors);

// A study as the store has it.
struct StoredStudy {
  telemetry::StudyRow row;  // id, status, times, conclusion
  Space space;
  StudySetup setup;
  std::vector<Trial> trials;  // ended, by number
  std::int64_t interrupted = 0;
  double interrupted_gpu_seconds = 0;  // of attempts that a crash cut off, running ones of a dead owner included

  const std::string& id() const { return row.info.id; }
};

// `id`: a study's id, its unique beginning, or "last". Only reads. Throws UserError (bad input) when there is no such
// study or it does not read back.
StoredStudy load_study(const telemetry::StudyStore& store, const std::string& id);

// A study this process owns. Destroying the journal before conclude() leaves the study as `interrupted`; a kill leaves
// it to be found `lost`. Both can be resumed.
struct OpenStudy {
  StoredStudy study;
  std::unique_ptr<Journal> journal;
};

OpenStudy create_study(const std::shared_ptr<telemetry::StudyStore>& store, const Space& space,
                       const StudySetup& setup);
// UserError exit 75 while another process runs it (`take_over`: its owner is on another host and known to be gone).
OpenStudy resume_study(const std::shared_ptr<telemetry::StudyStore>& store, const std::string& id,
                       bool take_over = false);
// Keeps other options of a study this process owns: more trials, a larger budget.
void save_setup(telemetry::StudyStore& store, const std::string& id, const StudySetup& setup);

// The journal over a study this process owns. Journal::alive() charges trial.gpu_seconds where that is set (the charge
// so far), else one device.
std::unique_ptr<Journal> make_store_journal(std::shared_ptr<telemetry::StudyStore> store, const std::string& study,
                                            Space space);

}  // namespace lockstep::tune
