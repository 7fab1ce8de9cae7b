// The backends whose ranks are joined pair by pair: collectives over a Mesh, all-reduce and barrier through shared
// memory where all ranks of a group share a host, and the fault board.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/comm/plugin_export.h"
#include "lockstep/comm/plugins/mesh/mesh.h"

namespace lockstep::comm {

// Connects the ranks of one group: store keys begin with `place`.
using MeshMaker = std::function<std::unique_ptr<Mesh>(const HostStore& store, const std::string& place, int rank,
                                                      int size, Clock::time_point deadline)>;

// `name`: of the backend, a literal. Throws BackendError, UserError.
std::unique_ptr<Backend> open_mesh_backend(const char* name, const PluginOptions& options, MeshMaker make_mesh);

// A number that is the same in every process; group names can be longer than a store key.
std::uint64_t fingerprint(const std::string& text);

}  // namespace lockstep::comm
