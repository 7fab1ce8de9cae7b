#include "lockstep/cli/engine_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>

#include "lockstep/base/error.h"
#include "lockstep/elastic/engine_api.h"

namespace lockstep::cli {
namespace {

constexpr const char* kLibraryName = "liblockstep_engine.so";

[[noreturn]] void no_engine() {
#ifdef LOCKSTEP_WHEEL
  throw environment_error("the engine is not part of the Python wheel, which plans, tunes, launches and reports",
                          "install the Debian package or build from source (docs/how-to/install.md), or set "
                          "LOCKSTEP_ENGINE to the path of " +
                              std::string(kLibraryName) + " of the same version");
#else
  throw environment_error(std::string(kLibraryName) + " is not beside the executable",
                          "build it with `make`, or set LOCKSTEP_ENGINE to its path");
#endif
}

template <typename Function>
Function* symbol(void* handle, const char* name) {
  void* address = dlsym(handle, name);
  if (address == nullptr) {
    throw environment_error(std::string(kLibraryName) + " has no symbol " + name, "build it again with `make`");
  }
  return reinterpret_cast<Function*>(address);
}

struct HostContext {
  const EngineCallbacks* callbacks;
  std::mutex mutex;
  std::string command = {};  // the last one
};

void forward_message(void* context, const char* json) {
  auto* host = static_cast<HostContext*>(context);
  const std::lock_guard lock(host->mutex);
  if (host->callbacks->on_message) host->callbacks->on_message(nlohmann::json::parse(json, nullptr, false));
}

int ask_stop(void* context) {
  auto* host = static_cast<HostContext*>(context);
  return host->callbacks->stop_requested ? host->callbacks->stop_requested() : 0;
}

const char* ask_command(void* context, int timeout_ms) {
  auto* host = static_cast<HostContext*>(context);
  std::optional<std::string> command = host->callbacks->next_command(timeout_ms);
  if (!command) return nullptr;
  host->command = std::move(*command);
  return host->command.c_str();
}

}  // namespace

std::filesystem::path executable_path() { return std::filesystem::read_symlink("/proc/self/exe"); }

std::filesystem::path executable_folder() { return executable_path().parent_path(); }

std::filesystem::path find_engine_library() {
  if (const char* given = std::getenv("LOCKSTEP_ENGINE"); given != nullptr && *given != '\0') return given;
  const std::filesystem::path folder = executable_folder();
  for (const auto& candidate : {folder / kLibraryName, folder / ".." / "lib" / "lockstep" / kLibraryName}) {
    if (std::filesystem::exists(candidate)) return std::filesystem::weakly_canonical(candidate);
  }
  return {};
}

const char* openblas_kernels() {
#if defined(__x86_64__)
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx512) return "SkylakeX";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "Haswell";
#endif
  return nullptr;
}

void prepare_compute(int threads) {
  const std::string text = std::to_string(threads);
  for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}) {
    setenv(name, text.c_str(), 1);
  }
  // Threads that spin while they wait take the cores from other ranks and other users; libgomp's usual 300,000 turns
  // cost a busy machine more than waking up costs an idle one.
  if (threads > 1 && std::getenv("OMP_WAIT_POLICY") == nullptr) setenv("GOMP_SPINCOUNT", "10000", 0);
  if (const char* kernels = openblas_kernels()) setenv("OPENBLAS_CORETYPE", kernels, 0);
  setenv("GLOG_minloglevel", "2", 0);  // libtorch's warnings are for its own developers
}

EngineLibrary::EngineLibrary() {
  const std::filesystem::path path = find_engine_library();
  if (path.empty()) no_engine();
  handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) {
    throw environment_error(
        "cannot open the engine: " + std::string(dlerror()),
        "install libtorch (`apt install libtorch1.13 libopenblas0`, in the source tree `make setup`), or "
        "run `lockstep doctor`");
  }
  const int abi = symbol<int()>(handle_, "lockstep_engine_abi")();
  if (abi != LOCKSTEP_ENGINE_ABI) {
    throw environment_error(path.string() + " is of another build (ABI " + std::to_string(abi) + ", wanted " +
                                std::to_string(LOCKSTEP_ENGINE_ABI) + ")",
                            "build executable and engine together with `make`");
  }
}

int EngineLibrary::call(const std::string& verb, const nlohmann::json& request,
                        const EngineCallbacks& callbacks) const {
  HostContext context{&callbacks, {}};
  const LockstepEngineHost host{&context, &forward_message, &ask_stop, callbacks.next_command ? &ask_command : nullptr};
  using Call = int(const char*, const char*, const LockstepEngineHost*);
  return symbol<Call>(handle_, "lockstep_engine_call")(verb.c_str(), request.dump().c_str(), &host);
}

nlohmann::json EngineLibrary::versions() const {
  return nlohmann::json::parse(symbol<const char*()>(handle_, "lockstep_engine_versions")());
}

}  // namespace lockstep::cli
