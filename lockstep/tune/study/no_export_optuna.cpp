// Chosen by CMake where SQLite is not installed.
#include "lockstep/base/error.h"
#include "lockstep/tune/study/export_optuna.h"

namespace lockstep::tune {

void export_optuna(const StoredStudy&, const std::filesystem::path&, const std::string&) {
  throw environment_error("this build of lockstep has no SQLite, which Optuna's storage is made of",
                          "export CSV instead, or read the study's file on a machine whose build has it");
}

}  // namespace lockstep::tune
