#include "lockstep/report/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "lockstep/base/error.h"

namespace lockstep::report {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Backward is about half gradients of the inputs, half gradients of the weights: the products have the same FLOPs.
constexpr double kWeightShare = 0.5;

// When every forward and backward of (micro-batch, stage in model order) ends.
class Progress {
 public:
  Progress(int micro_batches, int stages)
      : stages_(stages), forward_(static_cast<std::size_t>(micro_batches) * stages, kNever), backward_(forward_) {}

  double& forward(int micro, int stage) { return forward_[static_cast<std::size_t>(micro) * stages_ + stage]; }
  double& backward(int micro, int stage) { return backward_[static_cast<std::size_t>(micro) * stages_ + stage]; }
  int last() const { return stages_ - 1; }

 private:
  std::size_t stages_;
  std::vector<double> forward_, backward_;
};

class Player {
 public:
  explicit Player(const PipelineQuestion& question)
      : question_(question),
        ranks_(static_cast<int>(question.stages.size())),
        chunks_(question.chunks),
        micro_batches_(question.schedule == plan::Schedule::kInterleaved
                           ? (question.micro_batches + ranks_ - 1) / ranks_ * ranks_
                           : question.micro_batches),
        progress_(micro_batches_, ranks_ * chunks_),
        free_(ranks_, 0.0) {}

  std::vector<PipelineTask> play() {
    question_.schedule == plan::Schedule::kZeroBubble ? play_zero_bubble() : play_fixed_order();
    std::stable_sort(tasks_.begin(), tasks_.end(), [](const PipelineTask& a, const PipelineTask& b) {
      return a.stage != b.stage ? a.stage < b.stage : a.start < b.start;
    });
    return std::move(tasks_);
  }

 private:
  struct Step {
    TaskKind kind;
    int micro;
    int chunk;
  };

  // The k-th unit of work of an interleaved rank: groups of as many micro-batches as ranks go through every chunk.
  Step interleaved_step(TaskKind kind, int k) const {
    const int group = ranks_ * chunks_;
    const int first = k / group * ranks_;
    const int inside = k % group;
    const int chunk = inside / ranks_;
    return {kind, first + inside % ranks_, kind == TaskKind::kForward ? chunk : chunks_ - 1 - chunk};
  }

  std::vector<Step> order_of(int rank) const {
    const int total = micro_batches_ * chunks_;
    int warm_up = total;
    if (question_.schedule == plan::Schedule::kOneForwardOneBackward) warm_up = std::min(total, ranks_ - rank - 1);
    if (question_.schedule == plan::Schedule::kInterleaved) {
      warm_up = std::min(total, 2 * (ranks_ - rank - 1) + (chunks_ - 1) * ranks_);
    }
    std::vector<Step> order;
    order.reserve(2 * static_cast<std::size_t>(total));
    for (int k = 0; k < warm_up; ++k) order.push_back(interleaved_step(TaskKind::kForward, k));
    for (int k = warm_up; k < total; ++k) {
      order.push_back(interleaved_step(TaskKind::kForward, k));
      order.push_back(interleaved_step(TaskKind::kBackward, k - warm_up));
    }
    for (int k = total - warm_up; k < total; ++k) order.push_back(interleaved_step(TaskKind::kBackward, k));
    return order;
  }

  // Chunks in model order run over the ranks again and again, under zero bubble there and back: a V (Qi et al. 2023).
  bool turns(int chunk) const { return question_.schedule == plan::Schedule::kZeroBubble && chunk % 2 == 1; }
  int stage_of(int rank, int chunk) const { return chunk * ranks_ + (turns(chunk) ? ranks_ - 1 - rank : rank); }
  int rank_of(int stage) const {
    const int chunk = stage / ranks_, place = stage % ranks_;
    return turns(chunk) ? ranks_ - 1 - place : place;
  }
  // Seconds from one stage of the model to the next.
  double travel(int from, int to) const {
    const int sender = rank_of(from), receiver = rank_of(to);
    return sender == receiver ? 0 : question_.stages[std::min(sender, receiver)].send;
  }

  // Earliest time at which the inputs of a step are there; kNever: not yet known.
  double ready(int rank, const Step& step) {
    const int stage = stage_of(rank, step.chunk);
    if (step.kind == TaskKind::kForward) {
      return stage == 0 ? 0.0 : progress_.forward(step.micro, stage - 1) + travel(stage - 1, stage);
    }
    const double own = progress_.forward(step.micro, stage);
    if (stage == progress_.last()) return own;
    return std::max(own, progress_.backward(step.micro, stage + 1) + travel(stage + 1, stage));
  }

  void run(int rank, const Step& step, double start, double seconds) {
    const double end = start + seconds;
    tasks_.push_back({step.kind, rank, step.chunk, step.micro, start, end});
    free_[rank] = end;
    const int stage = stage_of(rank, step.chunk);
    if (step.kind == TaskKind::kForward) progress_.forward(step.micro, stage) = end;
    if (step.kind == TaskKind::kBackward) progress_.backward(step.micro, stage) = end;
  }

  void play_fixed_order() {
    std::vector<std::vector<Step>> orders;
    orders.reserve(ranks_);
    for (int rank = 0; rank < ranks_; ++rank) orders.push_back(order_of(rank));
    std::vector<std::size_t> next(ranks_, 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < ranks_; ++rank) {
        while (next[rank] < orders[rank].size()) {
          const Step& step = orders[rank][next[rank]];
          const double inputs = ready(rank, step);
          if (inputs == kNever) break;
          const StageSeconds& stage = question_.stages[rank];
          const double seconds = (step.kind == TaskKind::kForward ? stage.forward : stage.backward) / chunks_;
          run(rank, step, std::max(inputs, free_[rank]), seconds);
          ++next[rank];
          moved = true;
        }
      }
    }
    for (int rank = 0; rank < ranks_; ++rank) {
      LOCKSTEP_ASSERT(next[rank] == orders[rank].size(), "a pipeline schedule that waits for itself");
    }
  }

  // What a zero-bubble rank has done of one chunk.
  struct Counts {
    int forward = 0, backward = 0, weight = 0;
  };
  using Choice = std::pair<Step, double>;  // and when it could begin

  // What a rank does next: input gradients first, then forwards while memory allows, later chunks before earlier ones,
  // and weight gradients in the gaps.
  Choice zero_bubble_choice(int rank, const std::vector<Counts>& done) {
    const double now = free_[rank];
    int held = 0;
    for (const Counts& chunk : done) held += chunk.forward - chunk.weight;
    Choice best{{TaskKind::kForward, 0, 0}, kNever};
    const auto consider = [&](const Step& step) {
      const double start = std::max(now, ready(rank, step));
      if (start < best.second) best = {step, start};
    };
    for (int chunk = chunks_ - 1; chunk >= 0; --chunk) {
      if (done[chunk].backward < done[chunk].forward) consider({TaskKind::kBackward, done[chunk].backward, chunk});
    }
    for (int chunk = chunks_ - 1; chunk >= 0; --chunk) {
      // The first chunk leaves room for the last, or nothing could ever come back.
      const int room = ranks_ * chunks_ - (chunk == 0 ? chunks_ - 1 : 0);
      if (done[chunk].forward < micro_batches_ && held < room) {
        consider({TaskKind::kForward, done[chunk].forward, chunk});
      }
    }
    if (best.second <= now) return best;
    for (int chunk = chunks_ - 1; chunk >= 0; --chunk) {
      if (done[chunk].weight < done[chunk].backward)
        return {{TaskKind::kWeightGradient, done[chunk].weight, chunk}, now};
    }
    return best;
  }

  double zero_bubble_seconds(int rank, TaskKind kind) const {
    const StageSeconds& stage = question_.stages[rank];
    if (kind == TaskKind::kForward) return stage.forward / chunks_;
    return stage.backward / chunks_ * (kind == TaskKind::kWeightGradient ? kWeightShare : 1 - kWeightShare);
  }

  void play_zero_bubble() {
    std::vector<std::vector<Counts>> done(ranks_, std::vector<Counts>(chunks_));
    const int total = 3 * micro_batches_ * ranks_ * chunks_;
    for (int played = 0; played < total; ++played) {
      int chosen = -1;
      Choice best{{TaskKind::kForward, 0, 0}, kNever};
      for (int rank = 0; rank < ranks_; ++rank) {
        const Choice choice = zero_bubble_choice(rank, done[rank]);
        if (choice.second < best.second) {
          best = choice;
          chosen = rank;
        }
      }
      LOCKSTEP_ASSERT(chosen >= 0, "a pipeline schedule that waits for itself");
      run(chosen, best.first, best.second, zero_bubble_seconds(chosen, best.first.kind));
      Counts& counts = done[chosen][best.first.chunk];
      ++(best.first.kind == TaskKind::kForward    ? counts.forward
         : best.first.kind == TaskKind::kBackward ? counts.backward
                                                  : counts.weight);
    }
  }

  const PipelineQuestion& question_;
  int ranks_;
  int chunks_;
  int micro_batches_;
  Progress progress_;
  std::vector<double> free_;
  std::vector<PipelineTask> tasks_;
};

char letter_of(const PipelineTask& task) {
  if (task.kind == TaskKind::kWeightGradient) return 'w';
  return static_cast<char>(task.kind == TaskKind::kForward ? '0' + (task.micro + 1) % 10 : 'a' + task.micro % 10);
}

Ink ink_of(const PipelineTask& task) {
  switch (task.kind) {
    case TaskKind::kForward:
      return Ink::kBlue;
    case TaskKind::kBackward:
      return Ink::kGreen;
    case TaskKind::kWeightGradient:
      return Ink::kCyan;
  }
  return Ink::kPlain;
}

double last_end(const std::vector<PipelineTask>& tasks) {
  double end = 0;
  for (const PipelineTask& task : tasks) end = std::max(end, task.end);
  return end;
}

std::string draw_row(const std::vector<const PipelineTask*>& tasks, double seconds, int cells, const DrawStyle& style) {
  const std::string idle = style.unicode ? "·" : ".";
  std::string text, run;  // `run`: neighbours in one ink
  Ink run_ink = Ink::kPlain;
  std::size_t next = 0;
  for (int cell = 0; cell < cells; ++cell) {
    const double moment = (cell + 0.5) * seconds / cells;
    while (next < tasks.size() && tasks[next]->end <= moment) ++next;
    const bool busy = next < tasks.size() && tasks[next]->start <= moment;
    const Ink ink = busy ? ink_of(*tasks[next]) : Ink::kDim;
    if (ink != run_ink) {
      text += inked(run, run_ink, style);
      run.clear();
      run_ink = ink;
    }
    run += busy ? std::string(1, letter_of(*tasks[next])) : idle;
  }
  return text + inked(run, run_ink, style);
}

}  // namespace

std::vector<PipelineTask> play_pipeline(const PipelineQuestion& question) {
  LOCKSTEP_ASSERT(!question.stages.empty() && question.chunks >= 1, "a pipeline without stages");
  return Player(question).play();
}

double idle_share(const std::vector<PipelineTask>& tasks, int stages) {
  double busy = 0;
  for (const PipelineTask& task : tasks) busy += task.end - task.start;
  const double whole = last_end(tasks) * stages;
  return whole > 0 ? 1 - busy / whole : 0;
}

std::string draw_timeline(const std::vector<PipelineTask>& tasks, int stages, int cells, int most_rows,
                          const DrawStyle& style) {
  std::vector<std::vector<const PipelineTask*>> rows(stages);
  for (const PipelineTask& task : tasks) rows[task.stage].push_back(&task);
  const double seconds = last_end(tasks);
  const int head = stages <= most_rows ? stages : most_rows / 2;
  const int tail = stages <= most_rows ? stages : stages - most_rows / 2;
  std::string text;
  for (int stage = 0; stage < stages; ++stage) {
    if (stage == head && head < tail) text += fmt::format("  {:>8} {}\n", "...", style.unicode ? "⋮" : ":");
    if (stage >= head && stage < tail) continue;
    text += fmt::format("  stage {:>2} {}\n", stage, draw_row(rows[stage], seconds, cells, style));
  }
  return text;
}

}  // namespace lockstep::report
