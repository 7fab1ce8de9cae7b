// Opens liblockstep_engine.so, which brings libtorch; only verbs that train or measure pay for it.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace lockstep::cli {

// Folder of the running executable.
std::filesystem::path executable_folder();
std::filesystem::path executable_path();

// Where the engine lies: LOCKSTEP_ENGINE, beside the executable, or ../lib/lockstep. Empty when it is nowhere.
std::filesystem::path find_engine_library();

struct EngineCallbacks {
  std::function<void(const nlohmann::json&)> on_message;  // called from any thread of the engine, one at a time
  std::function<int()> stop_requested;                    // 0: go on, 1: stop, 2: stop to be started again
  // The agent's next command (elastic/control.h), nothing when none came in time; empty where there is no agent.
  std::function<std::optional<std::string>(int timeout_ms)> next_command = {};
};

// Sets the variables that BLAS and OpenMP read when they are loaded: threads, and OpenBLAS's kernels where the user did
// not choose (see openblas_kernels()). Call before EngineLibrary is made.
void prepare_compute(int threads);

// The OPENBLAS_CORETYPE for this processor, nullptr to leave the choice to OpenBLAS. Debian's OpenBLAS tells processors
// apart by model number and falls back to SSE3 kernels (three times slower) on those it does not know, as inside
// virtual machines; what the processor can do decides better.
const char* openblas_kernels();

class EngineLibrary {
 public:
  // Throws UserError (exit 4) when the library is missing, does not load or is of another build.
  EngineLibrary();

  // Runs a verb; returns its exit code. Errors come as "error" messages.
  int call(const std::string& verb, const nlohmann::json& request, const EngineCallbacks& callbacks) const;

  nlohmann::json versions() const;

 private:
  void* handle_;  // never closed: libtorch does not survive dlclose()
};

}  // namespace lockstep::cli
