// The diagnosis of a recorded run: every detector looks, and what is only a consequence of something else is left out.
#pragma once

#include <string>

#include "lockstep/diagnose/diagnosis.h"
#include "lockstep/diagnose/evidence.h"

namespace lockstep::diagnose {

// `run`: an id, its unique beginning, or "last". Throws UserError (bad input) where there is none. A run that recorded
// nothing but its end is diagnosed by that.
Diagnosis diagnose_run(const telemetry::RunStore& store, const std::string& run, const StepRange& range = {});
Diagnosis diagnose_evidence(const RunEvidence& evidence);

}  // namespace lockstep::diagnose
