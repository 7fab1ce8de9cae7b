// NVTX ranges of a rank's steps, for Nsight Systems.
#pragma once

#include <torch/types.h>

#include <string>

namespace lockstep::engine {

inline constexpr const char* kNvtxLibrary = "libnvToolsExt.so.1";

// Where `device` is a GPU and NVIDIA's library is there: phases of the steps become ranges. Else does nothing. Returns
// whether they do.
bool show_nvtx_ranges(torch::Device device, const std::string& library = kNvtxLibrary);

}  // namespace lockstep::engine
