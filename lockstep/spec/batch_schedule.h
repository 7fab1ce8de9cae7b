// BatchSchedule: how many samples every optimizer step of a run has. A batch-size warm-up has phases; most runs have
// one. The samples of a step do not depend on the number of ranks: they are spread over the micro-steps of all data
// ranks, evenly or not (data/loader.h).
//
//   BatchSchedule schedule = batch_schedule(job.batch, data_ranks, tokens_per_sample);
//   schedule.global_at(step, samples)                            // of the step after `step` steps and `samples`
//   samples micro_steps_of(schedule.final(), job.batch.micro, data_ranks)   // micro-batches of every data rank in such
//   a step
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/spec/job.h"

namespace lockstep::spec {

struct BatchSchedule {
  struct Phase {
    std::int64_t until_steps = 0;    // steps done, or
    std::int64_t until_samples = 0;  // samples used since the beginning of the run; both 0: to the end
    std::int64_t global = 1;         // samples of a step
    bool operator==(const Phase&) const = default;
  };
  std::vector<Phase> phases = {Phase{}};  // never empty; the last one has no end

  const Phase& phase_at(std::int64_t step, std::int64_t samples) const;
  std::int64_t global_at(std::int64_t step, std::int64_t samples) const { return phase_at(step, samples).global; }
  std::int64_t final() const { return phases.back().global; }
  std::int64_t largest() const;
  bool is_constant() const { return phases.size() == 1; }
  bool operator==(const BatchSchedule&) const = default;

  static BatchSchedule constant(std::int64_t global) { return {{Phase{0, 0, global}}}; }
};

// `accumulation` counts in micro-batches of `data_ranks`. tokens_per_sample: for phases that end after some tokens.
BatchSchedule batch_schedule(const Batch& batch, std::int64_t data_ranks, std::int64_t tokens_per_sample);

// The one place that says how many micro-batches a data rank has in a step of `global` samples: as few as keep each of
// them within `micro` samples. The same on every data rank, so that all take part in every exchange; where the samples
// do not divide, micro-batches have one sample less, or none.
std::int64_t micro_steps_of(std::int64_t global, std::int64_t micro, std::int64_t data_ranks);

// Steps from `step` steps done and `samples` samples used (of epochs of `epoch` samples, whose last step may be
// shorter) until `wanted` samples are used.
std::int64_t steps_until(const BatchSchedule& schedule, std::int64_t epoch, std::int64_t step, std::int64_t samples,
                         std::int64_t wanted);

// "2 until step 100, then 8" for people.
std::string to_string(const BatchSchedule& schedule);

}  // namespace lockstep::spec
