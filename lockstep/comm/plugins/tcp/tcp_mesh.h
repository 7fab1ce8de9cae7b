// Messages over sockets of our own: authenticated when they are made (door.h), gone when a peer is, and free to leave
// at any moment.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/plugin_export.h"
#include "lockstep/comm/plugins/mesh/mesh.h"
#include "lockstep/comm/plugins/tcp/connection.h"

namespace lockstep::comm {

// What the groups of one process share.
struct Transport {
  Transport(const std::string& address, const std::string& interface_name) : door(address, interface_name) {}

  Door door;
  Loop loop;
};

class TcpMesh final : public Mesh {
 public:
  // Connects to every other rank through `store` (its keys begin with `place`). Throws BackendError.
  TcpMesh(std::shared_ptr<Transport> transport, const HostStore& store, const std::string& place, int rank, int size,
          Clock::time_point deadline);
  ~TcpMesh() override;

  std::unique_ptr<Message> send(int peer, std::uint64_t tag, const void* data, std::int64_t bytes) override;
  std::unique_ptr<Message> receive(int peer, std::uint64_t tag, void* data, std::int64_t bytes) override;
  using Mesh::wait;
  void wait(Message& message, Clock::time_point deadline) override;
  void abort() noexcept override;

 private:
  void connect(const HostStore& store, const std::string& place, Clock::time_point deadline);
  std::unique_ptr<Message> start(int peer, std::uint64_t tag, void* data, std::int64_t bytes, bool sending);

  std::shared_ptr<Transport> transport_;
  std::vector<std::shared_ptr<Connection>> peers_;  // by rank; null: this one
  std::atomic<bool> aborted_{false};
};

}  // namespace lockstep::comm
