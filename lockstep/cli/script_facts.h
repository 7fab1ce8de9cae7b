// What is known of the inside of a module from Python (spec/script.h), for the verbs that plan or start a job.
#pragma once

#include <filesystem>

#include "lockstep/spec/job.h"

namespace lockstep::cli {

// Where the facts of this job's module are kept: $LOCKSTEP_HOME/modules, by the file's digest, its loss, the data that
// it was looked at with, and the threads it was measured with.
std::filesystem::path script_facts_path(const spec::Job& job);

// Fills job.model.script.facts; nothing for other models. The first time the engine is opened and runs a few
// micro-batches (engine/probe.h); then the kept answer is read. Throws UserError where the module or its data cannot be
// used, and (exit code 4) where there is no engine to ask.
void complete_model(spec::Job& job);

}  // namespace lockstep::cli
