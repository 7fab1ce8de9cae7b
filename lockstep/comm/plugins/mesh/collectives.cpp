#include "lockstep/comm/plugins/mesh/collectives.h"

#include <algorithm>
#include <cstring>

#include "lockstep/comm/reduce.h"

namespace lockstep::comm {
namespace {

// Below this, one round of whole buffers beats two rounds of slices.
constexpr std::int64_t kSmallBytes = 8 * 1024;
// A slice travels in pieces, so that reducing one overlaps with receiving the next.
constexpr std::int64_t kPieceBytes = 512 * 1024;
constexpr int kPiecesAhead = 2;

std::byte* at(void* data, std::int64_t bytes) { return static_cast<std::byte*>(data) + bytes; }
const std::byte* at(const void* data, std::int64_t bytes) { return static_cast<const std::byte*>(data) + bytes; }

void copy_bytes(void* out, const void* in, std::int64_t bytes) {
  if (bytes > 0 && out != in) std::memmove(out, in, static_cast<std::size_t>(bytes));
}

}  // namespace

template <typename Visit>
void MeshCollectives::each_peer(Visit visit) const {
  for (int step = 1; step < mesh_.size(); ++step) visit((mesh_.rank() + step) % mesh_.size());
}

std::byte* MeshCollectives::scratch(std::int64_t bytes) {
  if (static_cast<std::int64_t>(scratch_.size()) < bytes) scratch_.resize(static_cast<std::size_t>(bytes));
  return scratch_.data();
}

template <typename Reduced>
void MeshCollectives::reduce_slices(const Operation& operation, void* output, Reduced reduced) {
  const int size = mesh_.size();
  const int self = mesh_.rank();
  const DType dtype = operation.input.dtype;
  const std::int64_t element = size_of(dtype);
  const std::int64_t piece = kPieceBytes / element;
  const std::int64_t longest = slice_of(operation.input.count, size, 0).count;
  const Slice own = slice_of(operation.input.count, size, self);
  std::byte* const room = scratch(kPiecesAhead * size * kPieceBytes);
  const auto place = [&](std::int64_t index, int peer) {
    return room + ((index % kPiecesAhead) * size + peer) * kPieceBytes;
  };
  const auto clip = [&](const Slice& slice, std::int64_t index) {
    return std::clamp<std::int64_t>(slice.count - index * piece, 0, piece);
  };
  const std::int64_t pieces = (longest + piece - 1) / piece;
  Mesh::Messages sent;
  std::vector<Mesh::Messages> arriving(static_cast<std::size_t>(kPiecesAhead));
  const auto post = [&](std::int64_t index) {
    each_peer([&](int peer) {
      auto& messages = arriving[static_cast<std::size_t>(index % kPiecesAhead)];
      if (const auto count = clip(own, index); count > 0) {
        messages.push_back(mesh_.receive(peer, tag(0), place(index, peer), count * element));
      }
      const Slice theirs = slice_of(operation.input.count, size, peer);
      if (const auto count = clip(theirs, index); count > 0) {
        const auto* from = at(operation.input.data, (theirs.begin + index * piece) * element);
        sent.push_back(mesh_.send(peer, tag(0), from, count * element));
      }
    });
  };
  for (std::int64_t index = 0; index < std::min<std::int64_t>(kPiecesAhead, pieces); ++index) post(index);
  std::vector<const void*> inputs(static_cast<std::size_t>(size));
  for (std::int64_t index = 0; index < pieces; ++index) {
    mesh_.wait(arriving[static_cast<std::size_t>(index % kPiecesAhead)], deadline_);
    if (const auto count = clip(own, index); count > 0) {
      for (int peer = 0; peer < size; ++peer) inputs[static_cast<std::size_t>(peer)] = place(index, peer);
      inputs[static_cast<std::size_t>(self)] = at(operation.input.data, (own.begin + index * piece) * element);
      reduce_in_order(at(output, index * piece * element), inputs, count, dtype, operation.reduce);
      reduced(index * piece, count);
    }
    if (index + kPiecesAhead < pieces) post(index + kPiecesAhead);
  }
  mesh_.wait(sent, deadline_);
}

void MeshCollectives::all_reduce_small(const Operation& operation) {
  const std::int64_t bytes = operation.output.bytes();
  std::byte* const room = scratch(bytes * mesh_.size());
  std::vector<const void*> inputs(static_cast<std::size_t>(mesh_.size()), operation.input.data);
  Mesh::Messages messages;
  each_peer([&](int peer) {
    inputs[static_cast<std::size_t>(peer)] = room + peer * bytes;
    messages.push_back(mesh_.receive(peer, tag(0), room + peer * bytes, bytes));
    messages.push_back(mesh_.send(peer, tag(0), operation.input.data, bytes));
  });
  mesh_.wait(messages, deadline_);
  reduce_in_order(operation.output.data, inputs, operation.output.count, operation.output.dtype, operation.reduce);
}

void MeshCollectives::all_reduce(const Operation& operation) {
  if (operation.output.count == 0) return;
  if (operation.output.bytes() <= kSmallBytes) return all_reduce_small(operation);
  const std::int64_t element = size_of(operation.output.dtype);
  const std::int64_t piece = kPieceBytes / element;
  const int size = mesh_.size();
  const Slice own = slice_of(operation.output.count, size, mesh_.rank());
  std::byte* const mine = at(operation.output.data, own.begin * element);
  Mesh::Messages messages;
  // A peer sends a reduced piece only after it has our part of it, so the place it comes to is free by then.
  each_peer([&](int peer) {
    const Slice theirs = slice_of(operation.output.count, size, peer);
    for (std::int64_t done = 0; done < theirs.count; done += piece) {
      messages.push_back(mesh_.receive(peer, tag(1), at(operation.output.data, (theirs.begin + done) * element),
                                       std::min(piece, theirs.count - done) * element));
    }
  });
  reduce_slices(operation, mine, [&](std::int64_t begin, std::int64_t count) {
    each_peer([&](int peer) { messages.push_back(mesh_.send(peer, tag(1), mine + begin * element, count * element)); });
  });
  mesh_.wait(messages, deadline_);
}

void MeshCollectives::reduce_scatter(const Operation& operation) {
  reduce_slices(operation, operation.output.data, [](std::int64_t, std::int64_t) {});
}

void MeshCollectives::all_gather(const void* input, void* output, std::int64_t count, std::int64_t element) {
  // `count` elements in all, in slices as slice_of cuts them.
  Mesh::Messages messages;
  const Slice own = slice_of(count, mesh_.size(), mesh_.rank());
  each_peer([&](int peer) {
    const Slice theirs = slice_of(count, mesh_.size(), peer);
    if (theirs.count > 0) {
      messages.push_back(mesh_.receive(peer, tag(1), at(output, theirs.begin * element), theirs.count * element));
    }
    if (own.count > 0) messages.push_back(mesh_.send(peer, tag(1), input, own.count * element));
  });
  copy_bytes(at(output, own.begin * element), input, own.count * element);
  mesh_.wait(messages, deadline_);
}

void MeshCollectives::broadcast(const Operation& operation) {
  const std::int64_t bytes = operation.output.bytes();
  if (bytes == 0 || mesh_.size() == 1) return;
  const int root = operation.peer;
  std::byte* const data = static_cast<std::byte*>(operation.output.data);
  Mesh::Messages messages;
  // Large: the root distributes slices and all ranks gather them, so that no link carries more than twice the payload.
  const bool dealt = bytes > kSmallBytes * mesh_.size() && mesh_.size() > 2;
  const Slice own = slice_of(bytes, mesh_.size(), mesh_.rank());
  if (mesh_.rank() != root) {
    messages.push_back(mesh_.receive(root, tag(0), data + (dealt ? own.begin : 0), dealt ? own.count : bytes));
  } else {
    each_peer([&](int peer) {
      const Slice theirs = slice_of(bytes, mesh_.size(), peer);
      messages.push_back(mesh_.send(peer, tag(0), data + (dealt ? theirs.begin : 0), dealt ? theirs.count : bytes));
    });
  }
  mesh_.wait(messages, deadline_);
  if (dealt) all_gather(data + own.begin, data, bytes, 1);
}

void MeshCollectives::all_to_all(const Operation& operation) {
  const std::int64_t element = size_of(operation.output.dtype);
  const auto size = static_cast<std::size_t>(mesh_.size());
  std::vector<std::int64_t> from(size + 1, 0);
  std::vector<std::int64_t> to(size + 1, 0);
  for (std::size_t i = 0; i < size; ++i) {
    from[i + 1] = from[i] + operation.send_counts[i];
    to[i + 1] = to[i] + operation.receive_counts[i];
  }
  Mesh::Messages messages;
  each_peer([&](int peer) {
    const auto i = static_cast<std::size_t>(peer);
    if (const auto count = operation.receive_counts[i]; count > 0) {
      messages.push_back(mesh_.receive(peer, tag(0), at(operation.output.data, to[i] * element), count * element));
    }
    if (const auto count = operation.send_counts[i]; count > 0) {
      messages.push_back(mesh_.send(peer, tag(0), at(operation.input.data, from[i] * element), count * element));
    }
  });
  const auto self = static_cast<std::size_t>(mesh_.rank());
  copy_bytes(at(operation.output.data, to[self] * element), at(operation.input.data, from[self] * element),
             operation.send_counts[self] * element);
  mesh_.wait(messages, deadline_);
}

void MeshCollectives::barrier() {
  // Dissemination (Hensgen, Finkel and Manber 1988): after round k a rank has heard, indirectly, of 2^k others.
  std::byte token{};
  std::byte heard{};
  for (int distance = 1; distance < mesh_.size(); distance *= 2) {
    const int size = mesh_.size();
    Mesh::Messages messages;
    messages.push_back(mesh_.receive((mesh_.rank() - distance + size) % size, tag(0), &heard, 1));
    messages.push_back(mesh_.send((mesh_.rank() + distance) % size, tag(0), &token, 1));
    mesh_.wait(messages, deadline_);
  }
}

void MeshCollectives::run(const Operation& operation, Clock::time_point deadline) {
  ++counter_;
  deadline_ = deadline;
  switch (operation.kind) {
    case OpKind::kAllReduce:
      return all_reduce(operation);
    case OpKind::kReduceScatter:
      return reduce_scatter(operation);
    case OpKind::kAllGather:
      return all_gather(operation.input.data, operation.output.data, operation.output.count,
                        size_of(operation.output.dtype));
    case OpKind::kBroadcast:
      return broadcast(operation);
    case OpKind::kAllToAll:
      return all_to_all(operation);
    case OpKind::kBarrier:
      return barrier();
    case OpKind::kSend:
    case OpKind::kRecv:
      break;
  }
  throw InternalError("not a collective");
}

}  // namespace lockstep::comm
