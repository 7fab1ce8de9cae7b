// What `plan`, `train` and `tune` need to know about a module from Python or a plugin before they start, counted and
// measured here once (spec/script.h): the command line keeps the answer by the digest of the file.
#pragma once

#include <nlohmann/json.hpp>

#include "lockstep/engine/run_context.h"
#include "lockstep/spec/job.h"

namespace lockstep::engine {

// Counts the model's parameters and units, and runs a few micro-batches of the job's own data forward and backward in
// this thread: a second or two. Throws UserError for a module or data that cannot be used together.
spec::ScriptFacts probe_script(const spec::Job& job);

// `request`: {"job": YAML, "threads": N, "places": {"model": {"layers": ["job.yaml", 3, 12]}}}: of the plugins'
// options. Sends {"type": "result", "facts": TEXT}, or an "error"; the exit code. Of a built-in model there are no
// facts, and what the job takes from plugins was made and tried.
int run_probe(const nlohmann::json& request, const Host& host);

}  // namespace lockstep::engine
