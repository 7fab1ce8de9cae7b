// Point-to-point messages between all ranks of a group over Gloo's TCP transport.
//
// Gloo's own collectives are not used: a wait inside them cannot be interrupted, and their errors do not say which rank
// caused them. Here every message belongs to one known peer, and abort() wakes every wait.
#pragma once

#include <gloo/transport/context.h>
#include <gloo/transport/device.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/plugin_export.h"

namespace lockstep::comm {

class Mesh {
 public:
  // Connects to every other rank through `store` (its keys begin with `place`). Throws BackendError.
  Mesh(std::shared_ptr<gloo::transport::Device> device, const HostStore& store, const std::string& place, int rank,
       int size, Clock::time_point deadline);
  ~Mesh();

  // A message on its way. Its memory must stay until it is waited for or dropped.
  class Message {
   public:
    Message() = default;

   private:
    friend class Mesh;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
    int peer_ = -1;
    bool sending_ = false;
  };

  // Messages between two ranks match by tag, and in order among equal tags. `bytes` must be at least 1.
  Message send(int peer, std::uint64_t tag, const void* data, std::int64_t bytes);
  Message receive(int peer, std::uint64_t tag, void* data, std::int64_t bytes);

  // Blocks. Throws BackendError{kPeerLost | kTimeout, the peer} or {kAborted, -1}.
  void wait(Message& message, Clock::time_point deadline);
  void wait(std::vector<Message>& messages, Clock::time_point deadline);

  void abort() noexcept;

  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  void connect(const HostStore& store, const std::string& place, Clock::time_point deadline);
  Message start(int peer, std::uint64_t tag, void* data, std::int64_t bytes, bool sending);

  const int rank_;
  const int size_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;
  std::mutex mutex_;
  bool aborted_ = false;
  std::set<gloo::transport::UnboundBuffer*> waiting_;
};

}  // namespace lockstep::comm
