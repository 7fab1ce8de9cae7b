// Checkpoint cadence: how often to save so that time lost to saving plus time lost to failures is least, under a hard
// cap on lost work. Young 1974 ("A first order approximation to the optimum checkpoint interval") and Daly 2006 ("A
// higher order estimate of the optimum checkpoint interval for restart dumps"); the cap is ours: on small clusters
// their optimum lies hours apart.
//
// The process: every `interval` a checkpoint begins; training stalls while the state is copied to host memory, then
// goes on while the copy is written; from `durable` seconds after its beginning on it can be restored. Checkpoints do
// not overlap. A failure goes back to the state at the beginning of the newest durable checkpoint.
#pragma once

#include <cstdint>

#include "lockstep/plan/plan.h"
#include "lockstep/spec/cluster.h"
#include "lockstep/spec/job.h"
#include "lockstep/spec/model.h"

namespace lockstep::planner {

struct CadenceQuestion {
  double state_bytes = 0;                 // of a whole checkpoint: weights, master copy, optimizer
  double write_bytes_per_second = 0;      // of the storage, all nodes together; 0: unknown, writing then takes no time
  double failures_per_second = 0;         // of the whole job
  double stall_seconds = -1;              // measured; negative: the copy to host memory (asynchronous save)
  double write_seconds = -1;              // measured, after the stall; negative: state_bytes at that rate
  double restart_seconds = 300;           // detect, requeue, start, read back
  double step_seconds = 0;                // checkpoints fall between steps; 0: anywhere
  double max_lost_seconds = 1800;         // cap on the age of the state that a failure goes back to
  double host_copy_bytes_per_second = 0;  // all nodes together; 0: unknown, the copy then takes no time
};

// Never fails: without a failure rate the cap alone decides; a checkpoint that takes longer to write than the cap
// allows gives worst_lost_seconds above max_lost_seconds, which callers must report.
//   interval_seconds       from the beginning of one checkpoint to the beginning of the next
//   worst_lost_seconds     interval + time until the checkpoint being written is durable
//   expected_lost_seconds  half an interval + that time: a failure is equally likely at any moment
//   goodput                goodput_of() below
plan::CheckpointCadence choose_cadence(const CadenceQuestion& question);

// From the specs: failure rates summed over node groups, bytes of state from the model's parameters (16-bit weights,
// master copy, two AdamW moments: 14 bytes each), storage from the cluster, 20 GB/s of copying to host memory per node,
// 300 s to detect, requeue and start beside reading the state back.
// With adapters a checkpoint is theirs alone.
CadenceQuestion cadence_question(const spec::Model& model, const spec::Cluster& cluster, double step_seconds,
                                 double max_lost_seconds, const spec::Lora& lora = {});

// The best time between the beginnings of two checkpoints that stop training for `stall_seconds` each, where failures
// come every `mean_seconds_between_failures`. Young: sqrt(2 x stall x mean). Daly: that with two more terms, and the
// mean + stall where a stall takes longer than twice the mean.
double young_interval(double stall_seconds, double mean_seconds_between_failures);
double daly_interval(double stall_seconds, double mean_seconds_between_failures);

// Failures per second to expect of a run that was assumed to have `assumed_per_second` and has had `failures` in
// `seen_seconds`: the mean of the rate, given what was seen. The rate of a run is either as assumed, Gamma distributed
// with shape 1 and mean A = `assumed_per_second`; or, one run in a hundred, something is wrong with the machines and it
// is about one an hour (shape 1, mean H). With n failures in T seconds
//
//   mean = sum of p_i (n + 1) / (1 / r_i + T),   p_i ~ w_i / r_i / (1 / r_i + T)^(n + 1),   r = A, H,   w = 0.99, 0.01
//
// A failure in the first hour of a run that was assumed to have one in four months: expect one in 1.1 hours. The same
// after a day: one in ten days. While nothing has failed the assumption stands, 1 / (1 / A + T).
double expected_failure_rate(double assumed_per_second, std::int64_t failures, double seen_seconds);

// Whether `wanted` is another cadence than `now`: a little more or less is noise of the measurements.
bool is_other_cadence(double now, double wanted);

// Share of the wall time that trains and is not lost later, for failures that come as a Poisson process (also while
// restarting) and checkpoints every `interval_seconds` that become durable `background_seconds` after their stall.
// Exact for the process above: after a restart the n-th checkpoint counts when n x interval + background have passed
// without a failure, so a life of mean 1/rate keeps exp(-rate x background) / (exp(rate x interval) - 1) intervals.
double goodput_of(double interval_seconds, double stall_seconds, double background_seconds, double restart_seconds,
                  double failures_per_second);

}  // namespace lockstep::planner
