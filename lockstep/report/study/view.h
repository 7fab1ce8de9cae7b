// A study as the pages about it see it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "lockstep/tune/space/space.h"
#include "lockstep/tune/study/conclusion.h"
#include "lockstep/tune/study/store_journal.h"
#include "lockstep/tune/study/trial.h"

namespace lockstep::report {

// The references outlive the value.
struct StudyView {
  const tune::Space& space;
  std::span<const tune::Trial> trials;
  const tune::Conclusion& conclusion;

  std::string id;
  std::string name;
  std::string unit = "tokens/s";
  std::string host;
  double created_at = 0;  // unix time
  double ended_at = 0;    // 0: it has not
  std::uint64_t seed = 0;
  std::int64_t trials_allowed = 0;
  double gpu_seconds_allowed = 0;  // 0: no such bound
  double trial_seconds = 0;
  double usd_per_device_hour = 0;
  // How trials were made (tune/study/store_journal.h): {"kind": "engine|command|worker|simulate", ...}.
  nlohmann::json evaluator = nlohmann::json::object();
  nlohmann::json versions = nlohmann::json::object();  // strings by name

  bool simulated() const { return evaluator.is_object() && evaluator.value("kind", std::string()) == "simulate"; }
};

// `study` and its `conclusion` outlive the view. A study that was stopped or lost counts as not ended.
StudyView view_of(const tune::StoredStudy& study, const tune::Conclusion& conclusion);

}  // namespace lockstep::report
