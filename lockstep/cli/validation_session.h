// A job checked on proxies, from plan to comparison: what `lockstep validate` does behind its flags.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "lockstep/base/enum_names.h"
#include "lockstep/planner/proxy/proxy.h"
#include "lockstep/report/validation/validation.h"

namespace lockstep::cli {

// When the machine is measured: before every round of runs, once before the first, or not (the machine's own profile,
// as `train --dry-run` finds it, prices the proxies).
enum class Calibrating { kEach, kOnce, kNever };
constexpr auto names_of(Calibrating) { return enum_names<Calibrating::kNever>("each", "once", "never"); }

// As written on the command line; "" and 0: not given.
struct ValidateFlags {
  std::string job_file;
  std::vector<std::string> overrides;
  std::string plan_file, profile, device, backend;
  std::int64_t ranks = 0;
  planner::ProxyLimits limits;
  Calibrating calibrating = Calibrating::kEach;
  std::int64_t seed = 1;
};

// What is checked and on what, before anything is measured.
struct ValidationPlan {
  spec::Job job;
  plan::Plan target;
  planner::ProxyMachine machine;
  planner::ProxyChoice choice;
};

// Throws UserError: exit code 2 for flags and files, 3 where nothing fits, 4 where a device or a profile is missing.
ValidationPlan plan_validation(const ValidateFlags& flags);

// Calibrates, predicts, trains and compares. Blocks; minutes. `display`: a line for everything that begins; null:
// silent. Throws UserError: exit code 130 when it was asked to stop (the run in progress is ended first), 1 when a run
// failed.
report::Validation run_validation(const ValidationPlan& plan, const ValidateFlags& flags, std::FILE* display);

}  // namespace lockstep::cli
