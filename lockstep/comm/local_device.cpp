#include "lockstep/comm/local_device.h"

#include "lockstep/comm/reduce.h"

namespace lockstep::comm {
namespace {

const DeviceQueues::Mark& ready_mark(const Operation& operation) {
  return *static_cast<const DeviceQueues::Mark*>(operation.ticket);
}

void copy(DeviceQueues& device, const Operation& own, std::byte* out, const std::byte* in, std::int64_t bytes) {
  if (bytes > 0 && out != in) device.copy(own.stream, out, in, bytes);
}

void reduce(DeviceQueues& device, const Operation& own, const std::vector<void*>& outputs,
            const std::vector<const void*>& inputs, std::int64_t count) {
  if (inputs.size() == 1)
    return copy(device, own, at(outputs[0], 0), at(inputs[0], 0), count * size_of(own.output.dtype));
  if (count > 0) device.reduce(own.stream, outputs, inputs, count, own.output.dtype, own.reduce);
}

// Each rank reduces one slice straight from and into all ranks' buffers.
void all_reduce(DeviceQueues& device, int rank, const std::vector<const Operation*>& all) {
  const Operation& own = *all[static_cast<std::size_t>(rank)];
  const Slice slice = slice_of(own.output.count, static_cast<int>(all.size()), rank);
  const std::int64_t offset = slice.begin * size_of(own.output.dtype);
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (const Operation* other : all) {
    inputs.push_back(at(other->input.data, offset));
    outputs.push_back(at(other->output.data, offset));
  }
  reduce(device, own, outputs, inputs, slice.count);
}

}  // namespace

DeviceQueues::Mark queue_collective(DeviceQueues& device, int rank, const std::vector<const Operation*>& all) {
  const Operation& own = *all[static_cast<std::size_t>(rank)];
  for (const Operation* other : all) {
    if (other != &own) device.wait(own.stream, ready_mark(*other));
  }
  switch (own.kind) {
    case OpKind::kAllReduce:
      all_reduce(device, rank, all);
      break;
    case OpKind::kReduceScatter: {
      std::vector<const void*> inputs;
      for (const Operation* other : all) inputs.push_back(at(other->input.data, rank * own.output.bytes()));
      reduce(device, own, {own.output.data}, inputs, own.output.count);
      break;
    }
    case OpKind::kAllGather:
      for (std::size_t source = 0; source < all.size(); ++source) {
        const std::int64_t bytes = own.input.bytes();
        copy(device, own, at(own.output.data, static_cast<std::int64_t>(source) * bytes),
             at(all[source]->input.data, 0), bytes);
      }
      break;
    case OpKind::kBroadcast:
      copy(device, own, at(own.output.data, 0), at(all[static_cast<std::size_t>(own.peer)]->input.data, 0),
           own.output.bytes());
      break;
    case OpKind::kAllToAll:
      move_all_to_all(rank, all, [&](std::byte* to, const std::byte* from, std::int64_t bytes) {
        copy(device, own, to, from, bytes);
      });
      break;
    case OpKind::kBarrier:
    case OpKind::kSend:
    case OpKind::kRecv:
      break;
  }
  return device.mark(own.stream);
}

DeviceQueues::Mark queue_copy(DeviceQueues& device, const Operation& sent, const Operation& received) {
  device.wait(received.stream, ready_mark(sent));
  copy(device, received, at(received.output.data, 0), at(sent.input.data, 0), received.output.bytes());
  return device.mark(received.stream);
}

}  // namespace lockstep::comm
