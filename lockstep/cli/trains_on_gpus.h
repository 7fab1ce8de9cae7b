// Whether this build can train on GPUs. For sources of cli_core, which is compiled with the answer.
#pragma once

namespace lockstep::cli {

#ifdef LOCKSTEP_CUDA
inline constexpr bool kTrainsOnGpus = true;
#else
inline constexpr bool kTrainsOnGpus = false;
#endif

}  // namespace lockstep::cli
