// What is known of the inside of a module from Python or of a plugin (spec/script.h), for the verbs that plan or start
// a job.
#pragma once

#include <filesystem>

#include "lockstep/spec/job.h"

namespace lockstep::cli {

// Where the facts of this job's model are kept: $LOCKSTEP_HOME/modules, by the digest of its file, its options and
// loss, the data that it was looked at with, and the threads it was measured with.
std::filesystem::path script_facts_path(const spec::Job& job);

// Fills job.model.script.facts of such a model, and tries what else the job takes from plugins; nothing for other jobs.
// The first time a process of its own opens the engine and runs a few micro-batches (engine/probe.h); then the kept
// answer is read. Throws UserError where the model, its data or a plugin cannot be used, also where their code crashed,
// and (exit code 4) where there is no engine to ask.
void complete_model(spec::Job& job);

// That process: reads a request, writes the engine's messages to a file, a line each; the exit code.
int run_probe_here(const std::string& request, const std::string& answer);

}  // namespace lockstep::cli
