// Which Profile prices a run: one answer for `plan`, `train`, `tune`, `suggest` and Python.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/cost/profile/profile.h"
#include "lockstep/spec/job.h"

namespace lockstep::planner {

// Ranks as a machine would run them; a profile of processors is of exactly these.
struct Ranks {
  std::int64_t world = 1;
  std::int64_t threads = 1;  // per rank
  std::string backend;       // of the communicator
};

// `threads` 0: this machine's cores over its `here` ranks. `backend` "": the usual one.
Ranks ranks_here(const spec::Cluster& cluster, std::int64_t threads, const std::string& backend, std::int64_t here);
// The ranks of a job that is started by itself.
Ranks ranks_here(const spec::Job& job);

// $LOCKSTEP_HOME/profiles/<host>-<ranks>x<threads>-<backend>-<precision>.json: contention belongs to the profile.
std::filesystem::path profile_path(const Ranks& ranks, spec::Precision precision);
// $LOCKSTEP_HOME/profiles/<host>-<device>.json, of one accelerator ("cuda").
std::filesystem::path device_profile_path(const std::string& device);

// What was asked for by name: `given`, else $LOCKSTEP_PROFILE; "": nothing.
std::string named_profile(const std::string& given);

// `name` (a name of cost::profile_names() or a file; "": that of $LOCKSTEP_PROFILE) wins. Else what was measured here:
// on processors with these ranks and precision, on one GPU by `calibrate --device cuda` where it is of that kind. Else
// the fitted profile of the devices; each as the runs that were observed leave it (observations.h). nullopt: processors
// that were not calibrated so.
std::optional<cost::Profile> find_profile(const spec::Cluster& cluster, spec::Precision precision, const Ranks& ranks,
                                          const std::string& name);

// The same; a UserError (exit code 4) that says how to calibrate where there is none.
cost::Profile require_profile(const spec::Cluster& cluster, spec::Precision precision, const Ranks& ranks,
                              const std::string& name);

}  // namespace lockstep::planner
