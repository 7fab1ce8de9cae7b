// Optimizer steps one after the other: jitter drawn anew for each, checkpoints between them. Steps that cannot differ
// are played once.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/sim/step/player.h"

namespace lockstep::sim {

// A checkpoint begins after the first step that ends `interval_seconds` after the last one began, or when that is
// written: everybody stands still for the stall, then it is written in the background.
struct CheckpointProgram {
  double interval_seconds = 0;  // 0: none
  double stall_seconds = 0;
  double write_seconds = 0;  // after the stall
  double nic_share = 0;      // of every NIC while it is written
};

struct StepsQuestion {
  StepProgram program;
  RankMap ranks;
  Disturbances disturbances;
  CheckpointProgram checkpoints;
  bool contention = true;
  std::int64_t steps = 1;
  std::uint64_t seed = 1;
};

struct SimulatedStep {
  double begin = 0;             // seconds since the first step began
  double seconds = 0;           // with the stall
  double checkpoint_stall = 0;  // at its end; 0: no checkpoint
  bool writes = false;          // an older checkpoint is on its way
  std::shared_ptr<const PlayedStep> played;
};

struct Simulation {
  Symmetry symmetry;
  std::vector<SimulatedStep> steps;
  std::uint64_t events = 0;  // that were played
  double seconds() const { return steps.empty() ? 0 : steps.back().begin + steps.back().seconds; }
};

Simulation simulate(const StepsQuestion& question);

// Where the time of a rank goes in one step; the parts add up to the step without a stall.
struct TimeShares {
  double compute = 0;
  double exchange = 0;  // tp, cp, ep inside passes, with what contention adds to it
  double gather = 0;    // ZeRO before passes, beyond them, and for coupled peers; weights that are published
  double data = 0;      // loader
  double idle = 0;      // no input: the pipeline's bubble and its messages
  double reduce = 0;    // gradients, waiting for the others included
  double optimizer = 0;
  double host = 0;  // what is left
  double total() const { return compute + exchange + gather + data + idle + reduce + optimizer + host; }
};
TimeShares time_shares(const PlayedStep& step, const PlayedStage& stage, const StepProgram& program);

}  // namespace lockstep::sim
