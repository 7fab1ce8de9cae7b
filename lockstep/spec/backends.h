// Communicators that a job can name.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace lockstep::spec {

inline constexpr std::array<const char*, 6> kBackendWords = {"auto", "local", "tcp", "gloo", "mpi", "nccl"};

// Without "auto": by how the run is started.
inline std::vector<std::string> backend_names() { return {kBackendWords.begin() + 1, kBackendWords.end()}; }

// What ranks that are processes on CPUs use when nobody says otherwise.
inline constexpr const char* kUsualCpuBackend = "tcp";

}  // namespace lockstep::spec
