#include "lockstep/comm/plugins/gloo/gloo_mesh.h"

#include <gloo/common/error.h>
#include <gloo/transport/address.h>

#include <fmt/format.h>

namespace lockstep::comm {
namespace {

milliseconds time_left(Clock::time_point deadline) {
  // Gloo reads 0 and less as "no limit".
  return std::max(milliseconds(1), std::chrono::ceil<milliseconds>(deadline - Clock::now()));
}

// For all connections once every rank has come: one that is lost just then must not keep the others for long. Gloo
// waits five times as long as it is told.
constexpr milliseconds kConnectTime{8'000};
constexpr int kGlooFactor = 5;

milliseconds connect_time(Clock::time_point deadline) {
  return std::max(milliseconds(1), std::min(time_left(deadline), kConnectTime) / kGlooFactor);
}

// Gloo has one type for all input and output errors; only the text distinguishes a timeout from a closed connection.
BackendError translate(const std::exception& error, int peer) {
  const std::string text = error.what();
  if (text.find("imed out") != std::string::npos) {
    return {FaultKind::kTimeout, peer, "did not answer in time"};
  }
  return {FaultKind::kPeerLost, peer, "closed the connection"};
}

// Gloo's buffer of one message.
struct GlooMessage final : Mesh::Message {
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  int peer = -1;
  bool sending = false;
};

}  // namespace

GlooMesh::GlooMesh(std::shared_ptr<gloo::transport::Device> device, const HostStore& store, const std::string& place,
                   int rank, int size, Clock::time_point deadline)
    : Mesh(rank, size), device_(std::move(device)) {
  context_ = device_->createContext(rank, size);
  context_->setTimeout(connect_time(deadline));
  if (size > 1) connect(store, place, deadline);
}

GlooMesh::~GlooMesh() { GlooMesh::abort(); }

void GlooMesh::connect(const HostStore& store, const std::string& place, Clock::time_point deadline) {
  // Each rank has one listening address per peer. All are published under one key, in rank order, equally long.
  std::string mine;
  std::size_t address_bytes = 0;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) {
      mine += "\n";
      continue;
    }
    auto& pair = context_->createPair(peer);
    pair->setLocalRank(rank());
    const std::vector<char> bytes = pair->address().bytes();
    address_bytes = bytes.size();
    mine.append(bytes.begin(), bytes.end());
  }
  store.set(fmt::format("{}/address/{}", place, rank()), mine);
  // The store can be left, a half-made connection cannot: none is begun before all ranks have come.
  std::vector<std::string> addresses(static_cast<std::size_t>(size()));
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    try {
      addresses[static_cast<std::size_t>(peer)] = store.get(fmt::format("{}/address/{}", place, peer), deadline);
    } catch (const BackendError& error) {
      if (error.kind() != FaultKind::kTimeout) throw;
      throw BackendError(FaultKind::kTimeout, peer, "did not come to the rendezvous in time");
    }
  }
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const std::string& theirs = addresses[static_cast<std::size_t>(peer)];
    // The peer's own entry is the single byte before ours when its rank is lower.
    const std::size_t index = static_cast<std::size_t>(rank()) - (peer < rank() ? 1 : 0);
    const std::size_t offset = index * address_bytes + (peer < rank() ? 1 : 0);
    if (theirs.size() != (static_cast<std::size_t>(size()) - 1) * address_bytes + 1) {
      throw BackendError(FaultKind::kAborted, peer, "published a malformed address");
    }
    try {
      context_->getPair(peer)->connect({theirs.data() + offset, theirs.data() + offset + address_bytes});
    } catch (const gloo::Exception& error) {
      throw translate(error, peer);
    }
  }
}

std::unique_ptr<Mesh::Message> GlooMesh::start(int peer, std::uint64_t tag, void* data, std::int64_t bytes,
                                               bool sending) {
  auto message = std::make_unique<GlooMessage>();
  message->peer = peer;
  message->sending = sending;
  try {
    message->buffer = context_->createUnboundBuffer(data, static_cast<std::size_t>(bytes));
    if (sending) {
      message->buffer->send(peer, tag);
    } else {
      message->buffer->recv(peer, tag);
    }
  } catch (const gloo::Exception& error) {
    {
      const std::lock_guard lock(mutex_);
      if (aborted_) throw BackendError(FaultKind::kAborted, -1, "aborted here");
    }
    throw translate(error, peer);
  }
  return message;
}

std::unique_ptr<Mesh::Message> GlooMesh::send(int peer, std::uint64_t tag, const void* data, std::int64_t bytes) {
  return start(peer, tag, const_cast<void*>(data), bytes, true);  // Gloo only reads it
}

std::unique_ptr<Mesh::Message> GlooMesh::receive(int peer, std::uint64_t tag, void* data, std::int64_t bytes) {
  return start(peer, tag, data, bytes, false);
}

void GlooMesh::wait(Message& given, Clock::time_point deadline) {
  auto& message = dynamic_cast<GlooMessage&>(given);
  gloo::transport::UnboundBuffer* const buffer = message.buffer.get();
  if (buffer == nullptr) return;
  const auto is_aborted = [&] {
    const std::lock_guard lock(mutex_);
    waiting_.erase(buffer);
    return aborted_;
  };
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) throw BackendError(FaultKind::kAborted, -1, "aborted here");
    waiting_.insert(buffer);
  }
  bool complete = false;
  try {
    complete = message.sending ? buffer->waitSend(time_left(deadline)) : buffer->waitRecv(time_left(deadline));
  } catch (const gloo::Exception& error) {
    if (is_aborted()) throw BackendError(FaultKind::kAborted, -1, "aborted here");
    throw translate(error, message.peer);
  }
  is_aborted();
  if (!complete) throw BackendError(FaultKind::kAborted, -1, "aborted here");
  message.buffer.reset();
}

void GlooMesh::abort() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    aborted_ = true;
    for (auto* buffer : waiting_) {
      buffer->abortWaitSend();
      buffer->abortWaitRecv();
    }
  }
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    try {
      // Peers learn of it as a closed connection.
      if (auto& pair = context_->getPair(peer)) pair->close();
    } catch (...) {
      // Closed already, or never connected.
    }
  }
}

}  // namespace lockstep::comm
