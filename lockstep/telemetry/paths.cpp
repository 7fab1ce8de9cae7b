#include <cstdlib>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::telemetry {
namespace {

const char* set_variable(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? value : nullptr;
}

}  // namespace

std::filesystem::path home_directory() {
  if (const char* home = set_variable("LOCKSTEP_HOME")) return home;
  if (const char* data = set_variable("XDG_DATA_HOME")) return std::filesystem::path(data) / "lockstep";
  if (const char* home = set_variable("HOME")) return std::filesystem::path(home) / ".local/share/lockstep";
  throw environment_error("there is no place for the run store: HOME is not set", "set LOCKSTEP_HOME to a folder");
}

std::filesystem::path store_file(const std::filesystem::path& home) { return home / "runs.db"; }

std::filesystem::path run_folder(const std::filesystem::path& home, const std::string& run) {
  if (run.empty() || run == "." || run == ".." || run.find('/') != std::string::npos) {
    throw bad_input("'" + printable(run) + "' is not a run id", "see `lockstep report --help`");
  }
  return home / "runs" / run;
}

}  // namespace lockstep::telemetry
