#include "lockstep/nn/copy_ahead.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep::nn {

struct CopyAhead::Lane {
  explicit Lane(torch::Device device)
      : guard(device.type()), stream(guard.getStreamFromGlobalPool(device)), copied(device.type()) {}

  c10::impl::VirtualGuardImpl guard;
  c10::Stream stream;
  c10::Event copied;
};

CopyAhead::CopyAhead(torch::Device device) : device_(device) {
  if (!device.is_cpu()) lane_ = std::make_unique<Lane>(device);
}

CopyAhead::~CopyAhead() = default;

torch::Tensor CopyAhead::start(const torch::Tensor& host) {
  if (!lane_) return host;
  const c10::Stream reader = lane_->guard.getStream(device_);
  const c10::StreamGuard on_lane(lane_->stream);
  torch::Tensor copy = host.to(device_, /*non_blocking=*/true);
  // The memory belongs to the lane's stream: nothing may write there before its reader is done with it.
  copy.record_stream(reader);
  lane_->copied.record(lane_->stream);
  return copy;
}

void CopyAhead::join() {
  if (lane_) lane_->copied.block(lane_->guard.getStream(device_));
}

}  // namespace lockstep::nn
