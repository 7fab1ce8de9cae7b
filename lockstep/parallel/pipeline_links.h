// PipelineLinks: activations and gradients between the stages of a pipeline. Messages between two ranks arrive in the
// order they were sent; the schedule is data that both ends know, so the receiver takes them in the sender's order and
// no message carries a tag.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include <torch/types.h>

#include "lockstep/comm/communicator.h"
#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::parallel {

enum class Direction { kForward, kBackward };

class PipelineLinks {
 public:
  // `group`: rank i is stage i (invalid for one stage). `shape_of(position, micro)` are the sizes of what
  // goes into `position`, and of its gradient. It travels in the dtype of `options`.
  using ShapeOf = std::function<std::vector<std::int64_t>(int position, int micro)>;
  PipelineLinks(const plan::PipelineSchedule& schedule, int stage, comm::Communicator group, ShapeOf shape_of,
                torch::TensorOptions options);

  ~PipelineLinks();
  PipelineLinks(const PipelineLinks&) = delete;
  PipelineLinks& operator=(const PipelineLinks&) = delete;

  // What position `position` (held by this stage) gets from its neighbour: blocks until it is there, at most the
  // group's timeout. The receive of the message after it is started too.
  torch::Tensor take(Direction direction, int position, int micro);
  // Hands `tensor` to `position`, which may be on this stage; never blocks.
  void hand(Direction direction, int position, int micro, const torch::Tensor& tensor);
  // Waits until everything handed over has left.
  void finish();

 private:
  using Key = std::tuple<Direction, int, int>;  // direction, receiving position, micro-batch
  struct Arrival {
    torch::Tensor tensor;
    comm::Work work;
  };
  void expect(int stage);
  void receive_next(int peer);

  const plan::PipelineSchedule& schedule_;
  int stage_;
  comm::Communicator group_;
  ShapeOf shape_of_;
  torch::TensorOptions options_;
  std::map<int, std::deque<Key>> expected_;  // by sender, in its order
  std::map<Key, Arrival> arrived_;
  std::deque<Arrival> sent_;
};

}  // namespace lockstep::parallel
