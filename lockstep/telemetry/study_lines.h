// A study as JSON lines: what happened to it, one line each, and the state they add up to
// (docs/reference/run-store.md).
#pragma once

#include <string>

#include "lockstep/telemetry/study_rules.h"

namespace lockstep::telemetry {

struct StudyFile {
  StudyRow study;
  std::vector<AttemptRow> attempts;
  bool torn_end = false;  // the last line was cut short by a kill and left out
};
// UserError (bad input, file:line) for a line that is none of a study.
StudyFile read_study_file(const std::filesystem::path& file);

// One line each, without the newline.
std::string study_line(const StudyInfo& info);  // the first line
std::string owner_line(const StudyInfo& owner);
std::string attempt_line(const AttemptRow& attempt);
std::string alive_line(std::int64_t number, double seconds, double gpu_seconds);
std::string options_line(const nlohmann::json& options);
std::string release_line(RunStatus status, double time, const nlohmann::json& conclusion);

}  // namespace lockstep::telemetry
