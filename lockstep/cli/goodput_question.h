// What a plan says about a run that goes through weeks of failures, for `simulate` and `runbook`.
#pragma once

#include "lockstep/plan/plan.h"
#include "lockstep/sim/failures/comparison.h"

namespace lockstep::cli {

// Times of a recovery, as flags take them: what the drills on a Slurm cluster measured (bench/reports/slurm_drill.md),
// rounded up; from disk as the planner assumes.
inline constexpr const char* kDetect = "1s";
inline constexpr const char* kMemoryRestart = "2s";
inline constexpr const char* kDiskRestart = "300s";
inline constexpr const char* kResize = "5s";

// Nodes, the least of them that can leave (what splits the model stays, replicas and shards follow: plan/resize.h),
// cadence, prices, and the times above. Length, samples and spares are the caller's.
sim::GoodputQuestion goodput_question(const plan::Plan& plan);

// Of the plan's cluster; 0: not known.
double failures_per_1000_node_days(const plan::Plan& plan);

}  // namespace lockstep::cli
