// The space of a job: its own `tune:` section, a space named beside it, or the preset for its devices, fitted to it.
#pragma once

#include <string>
#include <vector>

#include "lockstep/cost/profile/profile.h"
#include "lockstep/spec/job.h"
#include "lockstep/tune/space/space.h"

namespace lockstep::tune {

// The job that a study of it starts from. On devices with figures a job without a layout gets the planner's, so that
// the default of every knob is what `lockstep plan` would run with that profile (null: the devices' own). Throws
// UserError as planner::make_plan() does.
spec::Job job_to_tune(spec::Job job, const cost::Profile* profile = nullptr);

// `space_name` (a preset or a file; "": not given) comes before the job file's `tune:` section, which comes before the
// preset lockstep-gpu or lockstep-cpu. Defaults that the space does not give are the job's own values.
//
// Presets are narrowed to the job: levels that it cannot run with (tensor ranks that do not divide its heads, fp8 on
// devices without, or where `train` has none) are left out, its own values are added and become the defaults, and knobs
// with one level left go. The global batch stays what the job has: where the space does not tie micro-batch and
// accumulation together itself, a constraint is added. Throws UserError (exit code 2) with file:line:column.
Space space_for_job(const spec::Job& job, const std::string& job_file, const std::string& space_name);

// What is known about NCCL on the job's cluster.
NcclFacts nccl_facts(const spec::Cluster& cluster);

}  // namespace lockstep::tune
