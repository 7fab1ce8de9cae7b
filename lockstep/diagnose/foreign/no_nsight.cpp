#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/diagnose/foreign/nsight.h"

namespace lockstep::diagnose {

std::vector<Trace> read_nsight(const std::filesystem::path& path) {
  throw environment_error(printable_path(path) + " is a SQLite file, and this build has no SQLite",
                          "build where libsqlite3-dev is installed");
}

}  // namespace lockstep::diagnose
