// Chosen by CMake where SQLite is not installed: there are no tables, runs and studies are JSON lines.
#include "lockstep/telemetry/run_store.h"
#include "lockstep/telemetry/study_store.h"

namespace lockstep::telemetry {

bool has_sqlite() { return false; }
std::unique_ptr<RunStore> make_sqlite_run_store(const std::filesystem::path&, bool, double) { return nullptr; }
std::unique_ptr<StudyStore> make_sqlite_study_store(const std::filesystem::path&, bool) { return nullptr; }

}  // namespace lockstep::telemetry
