// What both study stores hold to: who may own a study, and the messages when somebody else does.
#pragma once

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/telemetry/study_store.h"

namespace lockstep::telemetry {

inline constexpr const char* kMeasuredOutcome = "measured";  // every other outcome is a failure

// kLost where it says kRunning and the owner is gone.
RunStatus status_now(RunStatus written, const StudyInfo& info);
// Id and time of creation where they are missing; host and process always.
StudyInfo owned_by_this_process(StudyInfo info);
// Throws exit 75 when `row` is running (kLost is not).
void check_may_acquire(const StudyRow& row, bool take_over);

UserError not_the_owner(const std::string& study);
UserError study_exists(const std::string& study);
UserError no_such_study(const std::string& study);
UserError no_running_attempt(const std::string& study, std::int64_t number);

}  // namespace lockstep::telemetry
