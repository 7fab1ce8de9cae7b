// Walks the lists of a pipeline's ranks in an order that keeps every dependency. Internal to plan/pipeline_*.cpp.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::plan {

// One value per (position, micro-batch).
template <class Value>
class PerPosition {
 public:
  PerPosition(const PipelineSchedule& schedule, Value initial)
      : micro_batches_(static_cast<std::size_t>(schedule.micro_batches)),
        values_(static_cast<std::size_t>(schedule.positions()) * micro_batches_, initial) {}
  Value& at(int position, int micro) {
    return values_[static_cast<std::size_t>(position) * micro_batches_ + static_cast<std::size_t>(micro)];
  }

 private:
  std::size_t micro_batches_;
  std::vector<Value> values_;
};

inline bool gives_input_gradient(PipelineTaskKind kind) {
  return kind == PipelineTaskKind::kBackward || kind == PipelineTaskKind::kInputGradient;
}

// Calls visit(rank, task) for every task whose dependencies have been visited, each rank in the order of its list, and
// returns how many of its tasks each rank got through: all of them unless the ranks wait for each other. Chunks and
// micro-batches of the tasks are in range.
template <class Visit>
std::vector<std::size_t> walk_in_order(const PipelineSchedule& schedule, Visit&& visit) {
  PerPosition<char> forward(schedule, 0), gradient(schedule, 0);
  const auto ready = [&](int position, const PipelineTask& task) {
    if (task.kind == PipelineTaskKind::kForward) return position == 0 || forward.at(position - 1, task.micro) != 0;
    if (task.kind == PipelineTaskKind::kWeightGradient) return gradient.at(position, task.micro) != 0;
    return forward.at(position, task.micro) != 0 &&
           (position + 1 == schedule.positions() || gradient.at(position + 1, task.micro) != 0);
  };
  std::vector<std::size_t> next(schedule.ranks.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      const std::vector<PipelineTask>& tasks = schedule.ranks[rank];
      for (; next[rank] < tasks.size(); ++next[rank], moved = true) {
        const PipelineTask& task = tasks[next[rank]];
        const int position = schedule.position(static_cast<int>(rank), task.chunk);
        if (!ready(position, task)) break;
        visit(static_cast<int>(rank), task);
        if (task.kind == PipelineTaskKind::kForward) forward.at(position, task.micro) = 1;
        if (gives_input_gradient(task.kind)) gradient.at(position, task.micro) = 1;
      }
    }
  }
  return next;
}

}  // namespace lockstep::plan
