#include "lockstep/plan/zero_bubble.h"

#include <array>
#include <limits>

#include "lockstep/plan/pipeline_order.h"

namespace lockstep::plan {
namespace {

using Kind = PipelineTaskKind;

// A task that a rank does once per turn: in turn t for micro-batch t - lag.
struct Beat {
  Kind kind;
  int chunk;
  int lag;
};

template <std::size_t N>
std::vector<PipelineTask> turns_of(const std::array<Beat, N>& beats, int turns, int micro_batches) {
  std::vector<PipelineTask> tasks;
  tasks.reserve(N * static_cast<std::size_t>(micro_batches));
  for (int turn = 0; turn < turns; ++turn) {
    for (const Beat& beat : beats) {
      const int micro = turn - beat.lag;
      if (micro >= 0 && micro < micro_batches) tasks.push_back({beat.kind, beat.chunk, micro});
    }
  }
  return tasks;
}

// Plays forwards and input gradients in unit times and puts weight gradients, oldest first, where a rank would
// otherwise wait for an input or hold too much.
class WeightFiller {
 public:
  // `orders`: forwards and input gradients of each rank.
  WeightFiller(const PipelineSchedule& table, std::vector<std::vector<PipelineTask>> orders, int most_held)
      : table_(table),
        most_held_(most_held),
        forward_end_(table, kNever),
        gradient_end_(table, kNever),
        ranks_(static_cast<std::size_t>(table.stages)) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) ranks_[rank].order = std::move(orders[rank]);
  }

  std::vector<std::vector<PipelineTask>> fill() {
    const std::size_t all = 3 * static_cast<std::size_t>(table_.micro_batches * table_.chunks);
    std::size_t full = 0;
    for (int now = 0; full < ranks_.size(); ++now) {
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        if (ranks_[rank].list.size() == all) continue;
        work(static_cast<int>(rank), ranks_[rank], now);
        if (ranks_[rank].list.size() == all) ++full;
      }
    }
    std::vector<std::vector<PipelineTask>> lists;
    lists.reserve(ranks_.size());
    for (Rank& rank : ranks_) lists.push_back(std::move(rank.list));
    return lists;
  }

 private:
  static constexpr int kNever = std::numeric_limits<int>::max();

  struct Rank {
    std::vector<PipelineTask> order;  // without weight gradients
    std::size_t next = 0;             // of order
    std::vector<PipelineTask> owed;   // weight gradients, oldest first
    std::size_t paid = 0;             // of owed
    int held = 0;
    std::vector<PipelineTask> list;  // the result
  };

  bool can_start(int position, const PipelineTask& task, int held, int now) {
    if (task.kind == Kind::kForward) {
      return held < most_held_ && (position == 0 || forward_end_.at(position - 1, task.micro) <= now);
    }
    return forward_end_.at(position, task.micro) <= now &&
           (position + 1 == table_.positions() || gradient_end_.at(position + 1, task.micro) <= now);
  }

  // One unit of time.
  void work(int number, Rank& rank, int now) {
    if (rank.next < rank.order.size()) {
      const PipelineTask& task = rank.order[rank.next];
      const int position = table_.position(number, task.chunk);
      if (can_start(position, task, rank.held, now)) {
        const bool forward = task.kind == Kind::kForward;
        (forward ? forward_end_ : gradient_end_).at(position, task.micro) = now + 1;
        if (forward) ++rank.held;
        if (!forward) rank.owed.push_back({Kind::kWeightGradient, task.chunk, task.micro});
        rank.list.push_back(task);
        ++rank.next;
        return;
      }
    }
    if (rank.paid == rank.owed.size()) return;
    rank.list.push_back(rank.owed[rank.paid++]);
    --rank.held;
  }

  const PipelineSchedule& table_;
  int most_held_;
  PerPosition<int> forward_end_, gradient_end_;
  std::vector<Rank> ranks_;
};

}  // namespace

// Weight gradients lag as far behind the forwards on every rank, stages - 1 micro-batches, which is what the first rank
// of 1F1B holds; the ranks that get their input gradients early have the most of them left to fill the drain.
std::vector<std::vector<PipelineTask>> zero_bubble_line(const PipelineSchedule& table) {
  std::vector<std::vector<PipelineTask>> lists;
  const int last = table.stages - 1;
  for (int rank = 0; rank <= last; ++rank) {
    const std::array<Beat, 3> beats{
        {{Kind::kForward, 0, 0}, {Kind::kInputGradient, 0, last - rank}, {Kind::kWeightGradient, 0, last}}};
    lists.push_back(turns_of(beats, table.micro_batches + last, table.micro_batches));
  }
  return lists;
}

// A turn of six units, forward and forward back, input gradient and input gradient back, two weight gradients. A
// micro-batch goes on to the next rank in the next unit on its way out, and in the next turn on its way back. So a
// rank holds 2 stages - rank - 1 micro-batches of its first chunk and rank + 1 of its second: 2 stages on every rank.
std::vector<std::vector<PipelineTask>> zero_bubble_v(const PipelineSchedule& table) {
  std::vector<std::vector<PipelineTask>> orders;
  const int last = table.stages - 1;
  for (int rank = 0; rank <= last; ++rank) {
    const std::array<Beat, 4> beats{{{Kind::kForward, 0, 0},
                                     {Kind::kForward, 1, last - rank},
                                     {Kind::kInputGradient, 1, last},
                                     {Kind::kInputGradient, 0, 2 * last - rank}}};
    orders.push_back(turns_of(beats, table.micro_batches + 2 * last, table.micro_batches));
  }
  return WeightFiller(table, std::move(orders), 2 * table.stages).fill();
}

}  // namespace lockstep::plan
