#include "lockstep/comm/plugins/tcp/tcp_mesh.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/comm/plugins/mesh/mesh_backend.h"

namespace lockstep::comm {
namespace {

// For all connections once every rank has come: one that is lost just then must not keep the others for long.
constexpr milliseconds kConnectTime{8'000};

struct TcpMessage final : Mesh::Message {
  TcpMessage(std::shared_ptr<Connection> connection, int to_or_from) : over(std::move(connection)), peer(to_or_from) {}
  ~TcpMessage() override { over->drop(transfer); }

  std::shared_ptr<Connection> over;
  Connection::Transfer transfer;
  int peer;
};

}  // namespace

TcpMesh::TcpMesh(std::shared_ptr<Transport> transport, const HostStore& store, const std::string& place, int rank,
                 int size, Clock::time_point deadline)
    : Mesh(rank, size), transport_(std::move(transport)), peers_(static_cast<std::size_t>(size)) {
  if (size > 1) connect(store, place, deadline);
}

TcpMesh::~TcpMesh() { TcpMesh::abort(); }

// The first rank makes the group's secret. A rank knocks at the doors of those before it and lets those after it in.
void TcpMesh::connect(const HostStore& store, const std::string& place, Clock::time_point deadline) {
  const auto fetch = [&](const std::string& key, int from) {
    try {
      return store.get(key, deadline);
    } catch (const BackendError& error) {
      if (error.kind() != FaultKind::kTimeout) throw;
      throw BackendError(FaultKind::kTimeout, from, "did not come to the rendezvous in time");
    }
  };
  if (rank() == 0) store.set(place + "/secret", Door::make_secret());
  const std::string secret = fetch(place + "/secret", 0);
  if (secret.size() != Knock::kSecretBytes) {
    throw BackendError(FaultKind::kAborted, 0, "published a malformed secret");
  }
  Knock mine;
  // The secret is of this group alone, so groups of one name in two worlds of one process stay apart too.
  mine.group = fingerprint(place + secret);
  mine.from = rank();
  std::copy(secret.begin(), secret.end(), mine.secret);
  transport_->door.expect(mine.group, secret);
  store.set(fmt::format("{}/address/{}", place, rank()), transport_->door.place());
  const auto keep = [&](int peer, Socket socket) {
    auto& connection = peers_[static_cast<std::size_t>(peer)];
    connection = std::make_shared<Connection>(transport_->loop, std::move(socket));
    connection->start();
  };
  // The store can be left, a door cannot: nobody waits at one before all ranks have come, and then not for long.
  std::vector<std::string> addresses;
  for (int peer = 0; peer < size(); ++peer) addresses.push_back(fetch(fmt::format("{}/address/{}", place, peer), peer));
  const auto soon = std::min(deadline, Clock::now() + kConnectTime);
  for (int peer = 0; peer < rank(); ++peer) {
    mine.to = peer;
    keep(peer, Door::knock(addresses[static_cast<std::size_t>(peer)], mine, soon));
  }
  for (int peer = rank() + 1; peer < size(); ++peer) keep(peer, transport_->door.accept(mine.group, peer, soon));
  transport_->door.forget(mine.group);
}

std::unique_ptr<Mesh::Message> TcpMesh::start(int peer, std::uint64_t tag, void* data, std::int64_t bytes,
                                              bool sending) {
  auto message = std::make_unique<TcpMessage>(peers_[static_cast<std::size_t>(peer)], peer);
  message->transfer.tag = tag;
  message->transfer.data = static_cast<char*>(data);
  message->transfer.bytes = static_cast<std::uint64_t>(bytes);
  if (sending) {
    message->over->send(message->transfer);
  } else {
    message->over->receive(message->transfer);
  }
  return message;
}

std::unique_ptr<Mesh::Message> TcpMesh::send(int peer, std::uint64_t tag, const void* data, std::int64_t bytes) {
  return start(peer, tag, const_cast<void*>(data), bytes, true);  // only read
}

std::unique_ptr<Mesh::Message> TcpMesh::receive(int peer, std::uint64_t tag, void* data, std::int64_t bytes) {
  return start(peer, tag, data, bytes, false);
}

void TcpMesh::wait(Message& given, Clock::time_point deadline) {
  auto& message = dynamic_cast<TcpMessage&>(given);
  const Connection::End end = message.over->wait(message.transfer, deadline);
  if (end == Connection::End::kDone) return;
  if (aborted_) throw BackendError(FaultKind::kAborted, -1, "aborted here");
  if (end == Connection::End::kLate) throw BackendError(FaultKind::kTimeout, message.peer, "did not answer in time");
  throw BackendError(FaultKind::kPeerLost, message.peer, "closed the connection");
}

void TcpMesh::abort() noexcept {
  aborted_ = true;
  for (const auto& peer : peers_) {
    if (peer) peer->close();
  }
}

}  // namespace lockstep::comm
