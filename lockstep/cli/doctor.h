// `lockstep doctor`: is this machine ready to train, and what to do if not. Torch-free. Each probe takes
// the paths and variables it looks at, so tests can point it at a made-up machine.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::cli {

enum class CheckStatus { kOk, kWarn, kFail };

struct Check {
  std::string name;
  CheckStatus status = CheckStatus::kOk;
  std::string detail;
  std::string fix;  // empty when there is nothing to do
};

using Environment = std::map<std::string, std::string>;

struct DoctorOptions {
  bool json = false;
  std::string run_store;         // folder or file of the run store; its folder may not exist yet
  std::string engine_library;    // liblockstep_engine.so; opened to see which libtorch and BLAS it gets
  std::string plugin_directory;  // where liblockstep_comm_*.so lie
  std::string root = "/";        // of /proc, /sys and /dev
  Environment environment;       // empty: the process's own
};

// Runs every probe in order. Takes a second or two (opening libtorch dominates).
std::vector<Check> run_checks(const DoctorOptions& options);

// run_checks(), printed as a table or JSON (schema lockstep.doctor/1). Returns the exit code: 0 when nothing fails,
// else 4.
int run_doctor(const DoctorOptions& options);

// --- probes ---
inline constexpr const char* kNoGpu = "none found; training runs on the CPU";
Check probe_cpu(const std::string& root);
Check probe_cpu_limit(const std::string& root, std::int64_t cores_seen);
Check probe_memory(const std::string& root);
Check probe_disk(const std::string& run_store);
Check probe_run_store(const std::string& run_store);
Check probe_shared_memory(const std::string& directory);
Check probe_open_files(std::uint64_t soft_limit, std::uint64_t hard_limit);
Check probe_loopback();
Check probe_clock();
Check probe_gpu(const std::string& root, const Environment& environment);
Check probe_launcher(const Environment& environment);
Check probe_plugin(const std::string& plugin_directory, const std::string& backend);
// libtorch and its BLAS as the engine library gets them when it is opened.
std::vector<Check> probe_engine(const std::string& engine_library);

enum class BlasKind { kOpenBlas, kMkl, kBlis, kAtlas, kReference, kBuiltIn };
// What the shared library at `path` is, by the symbols it exports (Debian's alternatives all have the same file name).
// Nothing when it cannot be opened. The reference implementation is what exports BLAS and no vendor's symbol.
std::optional<BlasKind> identify_blas(const std::string& path);
Check check_blas(const std::string& path);

}  // namespace lockstep::cli
