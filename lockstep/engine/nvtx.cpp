#include "lockstep/engine/nvtx.h"

#include <dlfcn.h>

#include "lockstep/telemetry/ranges.h"

namespace lockstep::engine {

// The library stays open: a profiler may have put its own functions into it.
bool show_nvtx_ranges(torch::Device device, const std::string& library) {
  if (!device.is_cuda()) return false;
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return false;
  telemetry::RangeFunctions functions;
  functions.push = reinterpret_cast<int (*)(const char*)>(::dlsym(handle, "nvtxRangePushA"));
  functions.pop = reinterpret_cast<int (*)()>(::dlsym(handle, "nvtxRangePop"));
  if (functions.push == nullptr || functions.pop == nullptr) return false;
  telemetry::show_ranges(functions);
  return true;
}

}  // namespace lockstep::engine
