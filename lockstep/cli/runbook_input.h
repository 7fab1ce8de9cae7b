// What a runbook is made of: a plan, or a job that is planned as `lockstep plan` does, and everything that follows
// from it.
#pragma once

#include <string>
#include <vector>

#include "lockstep/report/runbook/runbook.h"

namespace lockstep::cli {

// As written on the command line; "": not given.
struct RunbookFlags {
  std::string source;                  // PLAN.json or JOB.yaml
  std::vector<std::string> overrides;  // of the job file
  std::string job_file;                // of a plan
  std::string scheduler, validation, profile;
};

// Plans, searches strategies and sizes, and plays failures: a second or two. Throws UserError.
report::RunbookInput runbook_input(const RunbookFlags& flags);

}  // namespace lockstep::cli
