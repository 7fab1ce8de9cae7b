#include <fmt/format.h>
#include <gloo/transport/tcp/device.h>

#include "lockstep/comm/plugins/gloo/gloo_mesh.h"
#include "lockstep/comm/plugins/mesh/mesh_backend.h"
#include "lockstep/comm/plugins/mesh/sigpipe_guard.h"

namespace lockstep::comm {
namespace {

std::unique_ptr<Backend> open_gloo(const PluginOptions& options) {
  if (!options.store.present()) throw bad_input("gloo needs a rendezvous store", "pass CommOptions::store");
  gloo::transport::tcp::attr attributes;
  if (options.interface_name.empty()) {
    attributes.hostname = options.address;
  } else {
    attributes.iface = options.interface_name;
  }
  const SigpipeGuard guard;  // Gloo's own thread starts here
  std::shared_ptr<gloo::transport::Device> device;
  try {
    device = gloo::transport::tcp::CreateDevice(attributes);
  } catch (const std::exception& error) {
    throw environment_error(fmt::format("gloo cannot use {}: {}",
                                        options.interface_name.empty() ? "address " + options.address
                                                                       : "interface " + options.interface_name,
                                        error.what()),
                            "name an address or a network interface of this machine");
  }
  return open_mesh_backend("gloo", options,
                           [device](const HostStore& store, const std::string& place, int rank, int size,
                                    Clock::time_point deadline) -> std::unique_ptr<Mesh> {
                             return std::make_unique<GlooMesh>(device, store, place, rank, size, deadline);
                           });
}

}  // namespace
}  // namespace lockstep::comm

LOCKSTEP_EXPORT_COMM_BACKEND("gloo", lockstep::comm::open_gloo)
