#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "lockstep/base/enum_names.h"
#include "lockstep/plan/pipeline_order.h"

namespace lockstep::plan {
namespace {

using Kind = PipelineTaskKind;

const char* name_of(Kind kind) {
  return named<Kind::kWeightGradient>(kind, "forward", "backward", "input gradient", "weight gradient");
}

std::string text_of(const PipelineTask& task) {
  return fmt::format("{} of micro-batch {} in chunk {}", name_of(task.kind), task.micro, task.chunk);
}

std::optional<std::string> find_shape_problem(const PipelineSchedule& schedule) {
  if (schedule.stages < 1 || schedule.chunks < 1 || schedule.micro_batches < 1) {
    return fmt::format("{} stages, {} chunks, {} micro-batches", schedule.stages, schedule.chunks,
                       schedule.micro_batches);
  }
  if (schedule.ranks.size() != static_cast<std::size_t>(schedule.stages)) {
    return fmt::format("{} lists for {} stages", schedule.ranks.size(), schedule.stages);
  }
  return std::nullopt;
}

// How often each kind of task of each (chunk, micro-batch) is on one rank's list.
class Tally {
 public:
  explicit Tally(const PipelineSchedule& schedule)
      : schedule_(schedule), counts_(static_cast<std::size_t>(schedule.chunks * schedule.micro_batches)) {}

  std::optional<std::string> find_problem(const std::vector<PipelineTask>& tasks) {
    for (const PipelineTask& task : tasks) {
      if (task.chunk < 0 || task.chunk >= schedule_.chunks || task.micro < 0 || task.micro >= schedule_.micro_batches) {
        return text_of(task) + " does not exist";
      }
      if (++count(task.chunk, task.micro, task.kind) > 1) return text_of(task) + " comes twice";
      if (count(task.chunk, task.micro, Kind::kBackward) > 0 &&
          count(task.chunk, task.micro, Kind::kInputGradient) + count(task.chunk, task.micro, Kind::kWeightGradient) >
              0) {
        return text_of(task) + " comes both whole and split";
      }
    }
    return find_missing();
  }

 private:
  int& count(int chunk, int micro, Kind kind) {
    return counts_[static_cast<std::size_t>(chunk * schedule_.micro_batches + micro)][static_cast<std::size_t>(kind)];
  }

  std::optional<std::string> find_missing() {
    for (int chunk = 0; chunk < schedule_.chunks; ++chunk) {
      for (int micro = 0; micro < schedule_.micro_batches; ++micro) {
        const bool whole = count(chunk, micro, Kind::kBackward) > 0;
        for (const Kind kind : {Kind::kForward, Kind::kInputGradient, Kind::kWeightGradient}) {
          if (whole && kind != Kind::kForward) continue;
          if (count(chunk, micro, kind) == 0) return text_of({kind, chunk, micro}) + " is missing";
        }
      }
    }
    return std::nullopt;
  }

  const PipelineSchedule& schedule_;
  std::vector<std::array<int, 4>> counts_;  // by chunk and micro-batch, then kind
};

std::optional<std::string> find_order_problem(const PipelineSchedule& schedule,
                                              const std::vector<PipelineTask>& tasks) {
  std::vector<int> forwards(static_cast<std::size_t>(schedule.chunks), 0), gradients(forwards);
  for (const PipelineTask& task : tasks) {
    if (task.kind == Kind::kWeightGradient) continue;
    int& expected = (task.kind == Kind::kForward ? forwards : gradients)[static_cast<std::size_t>(task.chunk)];
    if (task.micro != expected) return fmt::format("{} comes before that of {}", text_of(task), expected);
    ++expected;
  }
  return std::nullopt;
}

std::optional<std::string> find_deadlock(const PipelineSchedule& schedule) {
  const std::vector<std::size_t> reached = walk_in_order(schedule, [](int, const PipelineTask&) {});
  for (std::size_t rank = 0; rank < reached.size(); ++rank) {
    if (reached[rank] == schedule.ranks[rank].size()) continue;
    return fmt::format("rank {} waits forever before its task {}, {}", rank, reached[rank],
                       text_of(schedule.ranks[rank][reached[rank]]));
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> find_schedule_problem(const PipelineSchedule& schedule) {
  if (auto problem = find_shape_problem(schedule)) return problem;
  for (int rank = 0; rank < schedule.stages; ++rank) {
    const std::vector<PipelineTask>& tasks = schedule.ranks[static_cast<std::size_t>(rank)];
    auto problem = Tally(schedule).find_problem(tasks);
    if (!problem) problem = find_order_problem(schedule, tasks);
    if (problem) return fmt::format("rank {}: {}", rank, *problem);
  }
  if (auto problem = find_deadlock(schedule)) return problem;
  for (int rank = 0; rank < schedule.stages; ++rank) {
    const int peak = peak_in_flight(schedule, rank);
    const std::int64_t most =
        chunks_in_flight(schedule.schedule, schedule.stages, rank, schedule.chunks, schedule.micro_batches);
    if (peak > most) return fmt::format("rank {} holds {} chunks, {} are allowed", rank, peak, most);
  }
  return std::nullopt;
}

int peak_in_flight(const PipelineSchedule& schedule, int rank) {
  int held = 0, peak = 0;
  for (const PipelineTask& task : schedule.ranks[static_cast<std::size_t>(rank)]) {
    if (task.kind == Kind::kForward) peak = std::max(peak, ++held);
    if (task.kind == Kind::kBackward || task.kind == Kind::kWeightGradient) --held;
  }
  return peak;
}

}  // namespace lockstep::plan
