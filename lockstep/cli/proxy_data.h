// Generated data of the right shape, for runs that need shapes and no more.
#pragma once

#include <filesystem>

#include "lockstep/spec/job.h"

namespace lockstep::cli {

// Writes what `job.data.kind` (text, classification, images) reads into `folder` and points job.data.path to it: enough
// for every step of the job, but at most some megabytes, which are then read again. The same bytes every time.
void write_proxy_data(spec::Job& job, const std::filesystem::path& folder);

}  // namespace lockstep::cli
