// Checkpoint cadence: how often to save so that time lost to saving plus time lost to failures is least, under a hard
// cap on lost work. Young 1974 ("A first order approximation to the optimum checkpoint interval") and Daly 2006 (the
// higher-order estimate); the cap is ours: on small clusters their optimum lies hours apart.
#pragma once

#include "lockstep/plan/plan.h"
#include "lockstep/spec/cluster.h"
#include "lockstep/spec/model.h"

namespace lockstep::planner {

struct CadenceQuestion {
  double state_bytes = 0;              // of a whole checkpoint: weights, master copy, optimizer
  double write_bytes_per_second = 0;   // of the storage, all nodes together; 0: unknown
  double failures_per_second = 0;      // of the whole job
  double stall_seconds = -1;           // measured; negative: assumed from the copy to host memory (asynchronous save)
  double restart_seconds = 300;        // detect, requeue, read back
  double step_seconds = 0;
  double max_lost_seconds = 1800;
  double host_copy_bytes_per_second = 0;  // all nodes together; 0: 20 GB/s per node is assumed by cadence_question()
};

// Never fails: without a failure rate the cap alone decides; a checkpoint that takes longer to write than the cap
// allows gives worst_lost_seconds above max_lost_seconds, which callers must report.
plan::CheckpointCadence choose_cadence(const CadenceQuestion& question);

// From the specs: sums failure rates over node groups, bytes of state from the model's parameters (16-bit weights,
// master copy, two AdamW moments), storage from the cluster.
CadenceQuestion cadence_question(const spec::Model& model, const spec::Cluster& cluster, double step_seconds,
                                 double max_lost_seconds);

}  // namespace lockstep::planner
