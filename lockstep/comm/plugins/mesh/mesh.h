// Point-to-point messages between all ranks of a group: what collectives are made of (collectives.h). Every message
// belongs to one known peer, so that an error names the rank that caused it, and abort() wakes every wait.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm/backend.h"

namespace lockstep::comm {

class Mesh {
 public:
  Mesh(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Mesh() = default;
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  // A message on its way. Its memory must stay until it is waited for or dropped.
  class Message {
   public:
    virtual ~Message() = default;
  };
  using Messages = std::vector<std::unique_ptr<Message>>;

  // Messages between two ranks match by tag, and in order among equal tags; both ends give the same number of bytes, 1
  // or more. Any thread.
  virtual std::unique_ptr<Message> send(int peer, std::uint64_t tag, const void* data, std::int64_t bytes) = 0;
  virtual std::unique_ptr<Message> receive(int peer, std::uint64_t tag, void* data, std::int64_t bytes) = 0;

  // Blocks. Throws BackendError{kPeerLost | kTimeout, the peer} or {kAborted, -1}.
  virtual void wait(Message& message, Clock::time_point deadline) = 0;
  void wait(Messages& messages, Clock::time_point deadline) {
    for (const auto& message : messages) wait(*message, deadline);
    messages.clear();
  }

  // Any thread, more than once; peers learn of it as a closed connection.
  virtual void abort() noexcept = 0;

  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  const int rank_;
  const int size_;
};

}  // namespace lockstep::comm
