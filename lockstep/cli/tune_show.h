// Studies of the past: listed, shown, exported; and the space of one to come.
#pragma once

#include <cstdio>
#include <string>

#include "lockstep/cli/tune_evaluators.h"
#include "lockstep/cli/tune_request.h"

namespace lockstep::cli {

int list_studies(bool json);
int show_study(const std::string& id, bool all_trials, bool json);

// `target` is csv:FILE or optuna:FILE.db. UserError (exit 2) for others. Says where it went on `notes`.
void export_study(const std::string& id, const std::string& target, std::FILE* notes);

// The space, its size and rules, where knobs go, and the first proposals; nothing is run or recorded.
int dry_run(const TuneRequest& request, bool json);

}  // namespace lockstep::cli
