// Where calibrated Profiles of this machine are kept, and which one fits a placement.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/cli/session.h"
#include "lockstep/cost/profile/profile.h"

namespace lockstep::cli {

// $LOCKSTEP_HOME/profiles/<host>-<ranks>x<threads>-<backend>-<precision>.json: contention belongs to the profile.
std::filesystem::path profile_path(const Placement& placement, spec::Precision precision);

// $LOCKSTEP_HOME/profiles/<host>-<device>.json, of one accelerator ("cuda").
std::filesystem::path device_profile_path(const std::string& device);

// `given` (a file) wins; else this machine's profile for the placement; nullopt when none was made yet.
std::optional<cost::Profile> find_profile(const Placement& placement, spec::Precision precision,
                                          const std::string& given);

// The same for a job. On GPUs: what `calibrate --device cuda` measured here, where the job has one device of that kind;
// else nullopt, and the planner takes the profile of the kind.
std::optional<cost::Profile> find_profile(const spec::Job& job, const Placement& placement, const std::string& given);

}  // namespace lockstep::cli
