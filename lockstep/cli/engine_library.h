// Opens liblockstep_engine.so, which brings libtorch; only verbs that train or measure pay for it.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace lockstep::cli {

// Folder of the running executable.
std::filesystem::path executable_folder();
std::filesystem::path executable_path();

// Where the engine lies: LOCKSTEP_ENGINE, beside the executable, or ../lib/lockstep. Empty when it is nowhere.
std::filesystem::path find_engine_library();

struct EngineCallbacks {
  std::function<void(const nlohmann::json&)> on_message;  // called from any thread of the engine, one at a time
  std::function<bool()> stop_requested;
};

// Sets the thread variables that BLAS and OpenMP read when they are loaded; call before EngineLibrary is made.
void set_compute_threads(int threads);

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
