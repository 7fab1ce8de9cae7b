#include "lockstep/parallel/pipeline_links.h"

#include "lockstep/base/error.h"
#include "lockstep/nn/tensor_comm.h"

namespace lockstep::parallel {
namespace {

comm::OpOptions at_site(Direction direction) {
  comm::OpOptions options;
  options.site = direction == Direction::kForward ? "pp: activations" : "pp: gradients";
  return options;
}

}  // namespace

PipelineLinks::PipelineLinks(const plan::PipelineSchedule& schedule, int stage, comm::Communicator group,
                             ShapeOf shape_of, torch::TensorOptions options)
    : schedule_(schedule), stage_(stage), group_(std::move(group)), shape_of_(std::move(shape_of)), options_(options) {
  for (int peer = 0; peer < schedule.stages; ++peer) {
    if (peer != stage) expect(peer);
  }
}

// After a failure messages may still be in flight, out of and into this object's memory.
PipelineLinks::~PipelineLinks() {
  for (auto& [key, arrival] : arrived_) arrival.work.settle();
  for (Arrival& leaving : sent_) leaving.work.settle();
}

// The messages that `peer` will send here, in the order of its tasks.
void PipelineLinks::expect(int peer) {
  for (const plan::PipelineTask& task : schedule_.ranks[static_cast<std::size_t>(peer)]) {
    const int position = schedule_.position(peer, task.chunk);
    if (task.kind == plan::PipelineTaskKind::kWeightGradient) continue;
    const bool forward = task.kind == plan::PipelineTaskKind::kForward;
    const int to = forward ? position + 1 : position - 1;
    if (to < 0 || to >= schedule_.positions() || schedule_.rank_of(to) != stage_) continue;
    expected_[peer].emplace_back(forward ? Direction::kForward : Direction::kBackward, to, task.micro);
  }
}

void PipelineLinks::receive_next(int peer) {
  std::deque<Key>& queue = expected_[peer];
  if (queue.empty()) return;
  const Key key = queue.front();
  queue.pop_front();
  const auto [direction, to, micro] = key;
  const int entered = direction == Direction::kForward ? to : to + 1;
  Arrival arrival{torch::empty(shape_of_(entered, micro), options_), {}};
  arrival.work = group_.recv(nn::buffer_of(arrival.tensor), peer, at_site(direction));
  arrived_.emplace(key, std::move(arrival));
}

torch::Tensor PipelineLinks::take(Direction direction, int position, int micro) {
  const Key key{direction, position, micro};
  const int peer = schedule_.rank_of(direction == Direction::kForward ? position - 1 : position + 1);
  while (arrived_.count(key) == 0) {
    LOCKSTEP_ASSERT(peer != stage_ && !expected_[peer].empty(), "the schedule has nobody who sends this");
    receive_next(peer);
  }
  if (peer != stage_) receive_next(peer);  // on its way while this one is worked on
  Arrival arrival = std::move(arrived_.at(key));
  arrived_.erase(key);
  arrival.work.wait();
  return arrival.tensor;
}

void PipelineLinks::hand(Direction direction, int position, int micro, const torch::Tensor& tensor) {
  const int peer = schedule_.rank_of(position);
  if (peer == stage_) {
    arrived_.emplace(Key{direction, position, micro}, Arrival{tensor, {}});
    return;
  }
  while (!sent_.empty() && sent_.front().work.done()) sent_.pop_front();
  Arrival leaving{tensor.to(options_.dtype().toScalarType()).contiguous(), {}};
  leaving.work = group_.send(nn::buffer_of(leaving.tensor), peer, at_site(direction));
  sent_.push_back(std::move(leaving));
}

void PipelineLinks::finish() {
  for (Arrival& leaving : sent_) leaving.work.wait();
  sent_.clear();
}

}  // namespace lockstep::parallel
