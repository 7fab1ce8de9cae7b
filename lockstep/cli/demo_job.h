// The demo's job file, which travels inside the executable.
#pragma once

#include <string>

namespace lockstep::cli {

// Writes specs/jobs/gpt-bytes-demo.yaml to $LOCKSTEP_HOME/jobs, so that it can be run again and changed; returns its
// path.
std::string write_demo_job();

}  // namespace lockstep::cli
