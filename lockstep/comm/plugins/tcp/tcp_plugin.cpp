#include "lockstep/comm/plugins/mesh/mesh_backend.h"
#include "lockstep/comm/plugins/tcp/tcp_mesh.h"

namespace lockstep::comm {
namespace {

std::unique_ptr<Backend> open_tcp(const PluginOptions& options) {
  if (!options.store.present()) throw bad_input("tcp needs a rendezvous store", "pass CommOptions::store");
  auto transport = std::make_shared<Transport>(options.address, options.interface_name);
  return open_mesh_backend("tcp", options,
                           [transport](const HostStore& store, const std::string& place, int rank, int size,
                                       Clock::time_point deadline) -> std::unique_ptr<Mesh> {
                             return std::make_unique<TcpMesh>(transport, store, place, rank, size, deadline);
                           });
}

}  // namespace
}  // namespace lockstep::comm

LOCKSTEP_EXPORT_COMM_BACKEND("tcp", lockstep::comm::open_tcp)
