// Chosen by CMake where SQLite is not installed.
#include "lockstep/base/error.h"
#include "lockstep/tune/transfer/earlier.h"

namespace lockstep::tune {

EarlierStudy read_optuna_storage(const std::filesystem::path&, const std::string&) {
  throw environment_error("this build of lockstep has no SQLite, which Optuna's storage is made of",
                          "export the study's data frame as CSV instead");
}

}  // namespace lockstep::tune
