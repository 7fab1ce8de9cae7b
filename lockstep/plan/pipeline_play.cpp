#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/plan/pipeline_order.h"

namespace lockstep::plan {
namespace {

class Player {
 public:
  Player(const PipelineSchedule& schedule, const std::vector<TaskSeconds>& seconds)
      : schedule_(schedule),
        seconds_(seconds),
        forward_end_(schedule, 0),
        gradient_end_(schedule, 0),
        played_(static_cast<std::size_t>(schedule.stages)) {}

  std::vector<PlayedTask> play() {
    const std::vector<std::size_t> reached =
        walk_in_order(schedule_, [this](int rank, const PipelineTask& task) { step(rank, task); });
    std::vector<PlayedTask> all;
    for (std::size_t rank = 0; rank < reached.size(); ++rank) {
      LOCKSTEP_ASSERT(reached[rank] == schedule_.ranks[rank].size(), "a pipeline schedule that waits for itself");
      all.insert(all.end(), played_[rank].begin(), played_[rank].end());
    }
    return all;
  }

 private:
  // Seconds between two neighbouring positions.
  double travel(int lower, int upper) const {
    const bool stays = schedule_.rank_of(lower) == schedule_.rank_of(upper);
    return stays ? 0 : seconds_[static_cast<std::size_t>(lower)].send;
  }

  double arrival(int position, const PipelineTask& task) {
    if (task.kind == PipelineTaskKind::kForward) {
      return position == 0 ? 0 : forward_end_.at(position - 1, task.micro) + travel(position - 1, position);
    }
    if (!gives_input_gradient(task.kind) || position + 1 == schedule_.positions()) return 0;
    return gradient_end_.at(position + 1, task.micro) + travel(position, position + 1);
  }

  double duration(int position, PipelineTaskKind kind) const {
    const TaskSeconds& seconds = seconds_[static_cast<std::size_t>(position)];
    switch (kind) {
      case PipelineTaskKind::kForward:
        return seconds.forward;
      case PipelineTaskKind::kBackward:
        return seconds.backward_input + seconds.backward_weight;
      case PipelineTaskKind::kInputGradient:
        return seconds.backward_input;
      case PipelineTaskKind::kWeightGradient:
        return seconds.backward_weight;
    }
    return 0;
  }

  // What the task needs of its own rank came before it on the list.
  void step(int rank, const PipelineTask& task) {
    std::vector<PlayedTask>& mine = played_[static_cast<std::size_t>(rank)];
    const int position = schedule_.position(rank, task.chunk);
    const double start = std::max(mine.empty() ? 0.0 : mine.back().end, arrival(position, task));
    const double end = start + duration(position, task.kind);
    mine.push_back({task, rank, start, end});
    if (task.kind == PipelineTaskKind::kForward) forward_end_.at(position, task.micro) = end;
    if (gives_input_gradient(task.kind)) gradient_end_.at(position, task.micro) = end;
  }

  const PipelineSchedule& schedule_;
  const std::vector<TaskSeconds>& seconds_;
  PerPosition<double> forward_end_, gradient_end_;
  std::vector<std::vector<PlayedTask>> played_;  // by rank
};

}  // namespace

std::vector<PlayedTask> play(const PipelineSchedule& schedule, const std::vector<TaskSeconds>& per_position) {
  LOCKSTEP_ASSERT(per_position.size() == static_cast<std::size_t>(schedule.positions()), "times of every position");
  return Player(schedule, per_position).play();
}

double step_seconds(const std::vector<PlayedTask>& played) {
  return std::accumulate(played.begin(), played.end(), 0.0,
                         [](double end, const PlayedTask& task) { return std::max(end, task.end); });
}

double busy_seconds(const std::vector<PlayedTask>& played, int rank) {
  return std::accumulate(played.begin(), played.end(), 0.0, [rank](double busy, const PlayedTask& task) {
    return task.rank == rank ? busy + (task.end - task.start) : busy;
  });
}

double idle_seconds(const std::vector<PlayedTask>& played, int rank) {
  return step_seconds(played) - busy_seconds(played, rank);
}

double idle_share(const std::vector<PlayedTask>& played, int stages) {
  const double whole = stages * step_seconds(played);
  double busy = 0;
  for (int rank = 0; rank < stages; ++rank) busy += busy_seconds(played, rank);
  return whole > 0 ? 1 - busy / whole : 0;
}

}  // namespace lockstep::plan
