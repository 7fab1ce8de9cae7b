// What `lockstep tune` was asked: flags as written, and the study they set up.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/tune/space/space.h"
#include "lockstep/tune/study/store_journal.h"

namespace lockstep::cli {

struct TuneFlags {
  std::string job_file;
  std::vector<std::string> overrides;
  std::string space, worker, command, name, gpus, metric, memory_limit, hang_timeout, profile, backend;
  std::string on;      // the scheduler that trials run on; "": this machine
  std::string launch;  // file with its settings, where there is no job file
  bool simulate = false, isolate = false;
  std::int64_t trials = 45;
  std::string budget;         // "2gpu-hours"; "": trials alone
  std::string trial_seconds;  // "": 60
  std::uint64_t seed = 1;
  int parallel = 1;
  std::int64_t confirm = -1;
  bool importance = true, prior = true;
  std::string objective;              // "tokens_per_second,memory"; "": throughput
  double usd_per_gpu_hour = 0;        // for the objective `dollars`
  std::vector<std::string> transfer;  // earlier studies: ids of ours, files of Optuna's

  // What was done with the flags rather than set by them.
  bool has_source() const { return !job_file.empty() || !worker.empty() || !command.empty(); }
};

// "2gpu-hours", "30gpu-minutes", "90 rank-seconds": GPU seconds. UserError (exit 2) otherwise.
double parse_gpu_budget(const std::string& text);

// "90", "90s", "2m": seconds above 0.
double parse_trial_seconds(const std::string& text, const std::string& flag);

// The space and the setup of a new study. UserError (exit 2) for flags that contradict each other.
struct TuneRequest {
  tune::Space space;
  tune::StudySetup setup;
};
TuneRequest make_tune_request(const TuneFlags& flags);

// The flags that a study which goes on may be given anew: trials, budget, parallel lanes. `given` are the names of the
// flags on the command line; true when the setup changed. UserError (exit 2) for any other.
bool apply_on_resume(const TuneFlags& flags, const std::vector<std::string>& given, tune::StudySetup& setup);

}  // namespace lockstep::cli
