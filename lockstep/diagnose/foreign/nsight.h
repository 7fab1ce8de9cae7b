// SQLite exports of Nsight Systems (nsys export --type sqlite), of any schema: tables and columns are looked for.
#pragma once

#include <filesystem>
#include <vector>

#include "lockstep/diagnose/foreign/trace.h"

namespace lockstep::diagnose {

// One Trace per GPU, whose rank is the GPU's number. The file is opened for reading only; one packed with gzip is
// unpacked into a temporary file. Throws UserError (exit 2) for what is damaged or holds no GPU work, environment_error
// where this build has no SQLite.
std::vector<Trace> read_nsight(const std::filesystem::path& path);

}  // namespace lockstep::diagnose
