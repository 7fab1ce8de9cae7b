#include "lockstep/engine/rollback.h"

namespace lockstep::engine {
namespace {

constexpr std::size_t kMostCopies = 2;  // so that one is always old enough

std::int64_t step_of(const std::vector<checkpoint::CheckpointPart>& copy) { return copy.front().facts.step; }

}  // namespace

void RollbackStates::keep(const TrainingState& state, const spec::Job& job, int world) {
  if (!keeps_ || (!kept_.empty() && state.step - step_of(kept_.back()) < every_)) return;
  std::vector<checkpoint::CheckpointPart> copy;
  copy.push_back(held_part(state, job, world));
  kept_.push_back(std::move(copy));
  if (kept_.size() > kMostCopies) kept_.pop_front();
}

const std::vector<checkpoint::CheckpointPart>& RollbackStates::go_back(std::int64_t from_step) {
  while (kept_.size() > 1 && from_step - step_of(kept_.back()) < every_) kept_.pop_back();
  return kept_.empty() ? none_ : kept_.back();
}

double RollbackStates::bytes() const {
  double sum = 0;
  for (const auto& copy : kept_) {
    for (const checkpoint::TensorPiece& piece : copy.front().pieces) sum += static_cast<double>(piece.values.nbytes());
  }
  return sum;
}

}  // namespace lockstep::engine
