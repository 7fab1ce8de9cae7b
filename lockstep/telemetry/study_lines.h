// A study as JSON lines: what happened to it, one line each, and the state they add up to (docs/run-store.md).
#pragma once

#include <string>

#include "lockstep/telemetry/study_rules.h"

namespace lockstep::telemetry {

// One line each, without the newline.
std::string study_line(const StudyInfo& info);  // the first line
std::string owner_line(const StudyInfo& owner);
std::string attempt_line(const AttemptRow& attempt);
std::string alive_line(std::int64_t number, double seconds, double gpu_seconds);
std::string options_line(const nlohmann::json& options);
std::string release_line(RunStatus status, double time, const nlohmann::json& conclusion);

// Adds what a line says. UserError (bad input) when it says nothing about a study; `place` goes into the message.
void apply_line(StudyFile& study, const std::string& line, const SourcePlace& place);

// Figures of the row that follow from the attempts, and kLost where the owner is gone.
void add_up(StudyFile& study);

// The attempt at that trial that is under way; nullptr when there is none.
AttemptRow* running_attempt(std::vector<AttemptRow>& attempts, std::int64_t number);

}  // namespace lockstep::telemetry
