// Trials through our own engine: one `lockstep train JOB.yaml key=value ... --report-steps` each, every step a sample.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/tune/evaluators/evaluator.h"
#include "lockstep/tune/job/knobs.h"

namespace lockstep::tune {

struct EngineOptions {
  std::filesystem::path executable = "/proc/self/exe";  // of `lockstep`
  std::string job_file;
  std::vector<std::string> overrides;  // the user's own; knobs come after them
  std::string directory;               // that relative paths start from; "": ours
  std::string backend;                 // communicator; "": the job's
  std::int64_t steps = 0;              // of a trial; 0: as many as the job has, the budget or racing ends them
  double hang_seconds = 60;            // without a step; 0: the budget decides
  double memory_bytes = 0;             // of all ranks together; more is out of memory. 0: no limit of ours
  std::vector<std::string> values;     // other figures that the study needs (CommandOptions::values)
  std::filesystem::path logs;          // folder for trial-0007.log; "": none
};

// Nothing of a trial is left behind: it runs with a run store of its own in a folder that goes with it, without
// checkpoints and without an evaluation. Ranks that outlive it are killed. Exit code 2 is an invalid configuration, 3
// and SIGKILL are out of memory (failure.h).
std::unique_ptr<Evaluator> make_engine_evaluator(std::shared_ptr<const JobKnobs> knobs, EngineOptions options);

// The words after `lockstep` of one trial, for `--dry-run` and recipes.
std::vector<std::string> engine_arguments(const JobKnobs& knobs, const EngineOptions& options, const Config& config);

}  // namespace lockstep::tune
