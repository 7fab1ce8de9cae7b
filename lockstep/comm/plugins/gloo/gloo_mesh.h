// Messages over Gloo's TCP transport. Gloo's own collectives are not used: a wait inside them cannot be interrupted,
// and their errors do not say which rank caused them.
#pragma once

#include <gloo/transport/context.h>
#include <gloo/transport/device.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "lockstep/comm/plugin_export.h"
#include "lockstep/comm/plugins/mesh/mesh.h"

namespace lockstep::comm {

class GlooMesh final : public Mesh {
 public:
  // Connects to every other rank through `store` (its keys begin with `place`). Throws BackendError.
  GlooMesh(std::shared_ptr<gloo::transport::Device> device, const HostStore& store, const std::string& place, int rank,
           int size, Clock::time_point deadline);
  ~GlooMesh() override;

  std::unique_ptr<Message> send(int peer, std::uint64_t tag, const void* data, std::int64_t bytes) override;
  std::unique_ptr<Message> receive(int peer, std::uint64_t tag, void* data, std::int64_t bytes) override;
  using Mesh::wait;
  void wait(Message& message, Clock::time_point deadline) override;
  void abort() noexcept override;

 private:
  void connect(const HostStore& store, const std::string& place, Clock::time_point deadline);
  std::unique_ptr<Message> start(int peer, std::uint64_t tag, void* data, std::int64_t bytes, bool sending);

  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;
  std::mutex mutex_;
  bool aborted_ = false;
  std::set<gloo::transport::UnboundBuffer*> waiting_;
};

}  // namespace lockstep::comm
