// RollbackStates: copies of this rank's state in host memory, taken every so many steps, for a run that goes back when
// its numbers go wrong (docs/reference/resume-and-health.md). Every rank keeps its own, after the same steps.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "lockstep/checkpoint/pieces.h"
#include "lockstep/engine/training_state.h"
#include "lockstep/spec/job.h"

namespace lockstep::engine {

class RollbackStates {
 public:
  // Keeps nothing where the policy never goes back.
  explicit RollbackStates(const spec::Health& policy) : keeps_(policy.rolls_back()), every_(policy.rollback_steps) {}

  // Before the first step and after each one that was healthy: copies the state when it is due.
  void keep(const TrainingState& state, const spec::Job& job, int world);
  // The newest that is at least `rollback_steps` steps old, else the oldest; later ones are forgotten. Empty when none
  // is kept. A copy stays kept until newer ones take its place.
  const std::vector<checkpoint::CheckpointPart>& go_back(std::int64_t from_step);
  double bytes() const;  // of all copies

 private:
  bool keeps_;
  std::int64_t every_;
  std::deque<std::vector<checkpoint::CheckpointPart>> kept_;  // each of one part; oldest first
  std::vector<checkpoint::CheckpointPart> none_;
};

}  // namespace lockstep::engine
