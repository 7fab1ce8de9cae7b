// A study as a database that Optuna opens: optuna.load_study(study_name=..., storage="sqlite:///FILE").
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/tune/study/store_journal.h"

namespace lockstep::tune {

// Writes a new file, all or nothing. Trials are COMPLETE (measured), PRUNED (stopped early) or FAIL with their
// parameters, distributions, values (throughput, to be maximized, or one by objective), samples as intermediate values,
// times, and user attributes (purpose, outcome, seconds, gpu_seconds, ...); the study carries space, unit, versions and
// conclusion as user attributes. Constraints between knobs are not something Optuna's storage can hold: they are in the
// attribute `lockstep:space`.
//
// `study_name` "": the study's id. The tables are those of Optuna 3.2 and later (revision v3.2.0.a; Optuna 5.0 reads
// them as they are). Throws UserError: bad input when the file exists, environment when it cannot be written or this
// build has no SQLite.
void export_optuna(const StoredStudy& study, const std::filesystem::path& file, const std::string& study_name = {});

}  // namespace lockstep::tune
