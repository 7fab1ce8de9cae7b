// `--simulate`: the predictor as evaluator, so that a job can be studied without its devices. Nothing is run, no file
// of the job's data is opened; seconds are virtual.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/tune/evaluators/evaluator.h"
#include "lockstep/tune/job/pricer.h"

namespace lockstep::tune {

// Standard deviations are of the logarithm. Noise follows from (seed, trial) alone: a study that is resumed sees the
// same launches.
struct SimulateOptions {
  std::uint64_t seed = 1;
  double launch_spread = 0.015;        // between launches of one configuration
  double step_spread = 0.01;           // between steps of one launch
  double start_seconds = 15;           // processes, libraries, communicators
  double read_bytes_per_second = 5e9;  // of a node, for the weights
  std::int64_t steps = 20;             // of a trial, fewer when the budget ends
};

// Throws UserError (exit code 4) in evaluate() where the job cannot be priced at all (a CPU without a profile).
std::unique_ptr<Evaluator> make_simulate_evaluator(std::shared_ptr<const JobPricer> pricer,
                                                   const SimulateOptions& options = {});

}  // namespace lockstep::tune
