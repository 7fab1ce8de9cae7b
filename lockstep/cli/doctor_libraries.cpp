// Probes of shared libraries: the engine's libtorch and BLAS, communicator plugins. Nothing is linked here; libraries
// are opened as the engine would open them, and asked what they are.
#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <memory>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/enum_names.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/doctor.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

struct CloseLibrary {
  void operator()(void* handle) const { dlclose(handle); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

Library open_library(const std::string& path, int flags = 0) {
  return Library(dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL | flags));
}

std::string last_error() {
  const char* text = dlerror();
  return text != nullptr ? printable(text, 200) : "unknown error";
}

// Paths of everything mapped into this process.
std::vector<std::string> loaded_libraries() {
  std::vector<std::string> paths;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        if (info->dlpi_name != nullptr && *info->dlpi_name != 0)
          static_cast<std::vector<std::string>*>(out)->emplace_back(info->dlpi_name);
        return 0;
      },
      &paths);
  return paths;
}

std::string find_library(const std::vector<std::string>& paths, const std::string& prefix) {
  for (const std::string& path : paths) {
    if (fs::path(path).filename().string().rfind(prefix, 0) == 0) return path;
  }
  return "";
}

const char* name_of(BlasKind kind) {
  return named<BlasKind::kBuiltIn>(kind, "OpenBLAS", "MKL", "BLIS", "ATLAS", "the reference BLAS",
                                   "built into libtorch");
}

// ", SkylakeX kernels" where OpenBLAS says which it chose.
std::string openblas_kernels_of(const std::string& path) {
  const Library library = open_library(path);
  using CoreName = const char* (*)();
  const auto name = library ? reinterpret_cast<CoreName>(dlsym(library.get(), "openblas_get_corename")) : nullptr;
  return name == nullptr ? "" : fmt::format(", {} kernels", name());
}

// {"torch": "1.13.0", ...} as people read it.
std::string versions_text(const char* json) {
  const nlohmann::json versions = nlohmann::json::parse(json, nullptr, false);
  return versions.is_object() ? "libtorch " + versions.value("torch", "?") : printable(json, 300);
}

}  // namespace

std::optional<BlasKind> identify_blas(const std::string& path) {
  const Library library = open_library(path);
  if (!library) return std::nullopt;
  const std::pair<const char*, BlasKind> vendors[] = {{"openblas_get_config", BlasKind::kOpenBlas},
                                                      {"mkl_get_version", BlasKind::kMkl},
                                                      {"MKL_Get_Version", BlasKind::kMkl},
                                                      {"bli_info_get_version_str", BlasKind::kBlis},
                                                      {"ATL_buildinfo", BlasKind::kAtlas}};
  for (const auto& [symbol, kind] : vendors) {
    if (dlsym(library.get(), symbol) != nullptr) return kind;
  }
  return dlsym(library.get(), "sgemm_") != nullptr ? BlasKind::kReference : BlasKind::kBuiltIn;
}

Check check_blas(const std::string& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  const std::string place = error ? path : real.string();
  const auto kind = identify_blas(path);
  if (!kind)
    return {"blas", CheckStatus::kFail, "cannot open " + path + ": " + last_error(),
            "apt-get install libopenblas0-pthread"};
  if (*kind == BlasKind::kReference) {
    return {"blas", CheckStatus::kFail,
            fmt::format("{} is the reference BLAS: matrix products run about 30 times slower than they could", place),
            "apt-get install libopenblas0-pthread (or update-alternatives --config libblas.so.3-x86_64-linux-gnu)"};
  }
  return {"blas", CheckStatus::kOk, fmt::format("{}{} ({})", name_of(*kind), openblas_kernels_of(path), place), ""};
}

std::vector<Check> probe_engine(const std::string& engine_library) {
  std::error_code missing;
  if (engine_library.empty() || !fs::exists(engine_library, missing)) {
    return {{"engine", CheckStatus::kFail,
             engine_library.empty() ? "no engine library named" : engine_library + " is missing",
             "build it with `make`"}};
  }
  // Never unloaded: libtorch starts threads and registers destructors that must find its code.
  const Library engine = open_library(engine_library, RTLD_NODELETE);
  if (!engine) {
    return {{"engine", CheckStatus::kFail, last_error(), "install libtorch (make setup), then build again"}};
  }
  std::vector<Check> checks;
  const auto paths = loaded_libraries();
  const std::string torch = find_library(paths, "libtorch_cpu");
  using Versions = const char* (*)();
  const auto versions = reinterpret_cast<Versions>(dlsym(engine.get(), "lockstep_engine_versions"));
  const std::string detail = versions != nullptr ? versions_text(versions()) : std::string("no version");
  if (torch.empty()) {
    checks.push_back(
        {"libtorch", CheckStatus::kFail, "the engine was loaded without libtorch_cpu", "build it again with `make`"});
    return checks;
  }
  checks.push_back({"libtorch", CheckStatus::kOk, fmt::format("{} ({})", detail, torch), ""});
  // Debian's libtorch links libblas.so.3, whichever package provides it; PyPI's contains MKL.
  const std::string blas = find_library(paths, "libblas.so");
  if (!blas.empty()) {
    checks.push_back(check_blas(blas));
  } else if (const std::string vendor = find_library(paths, "libopenblas"); !vendor.empty()) {
    checks.push_back(check_blas(vendor));
  } else {
    checks.push_back({"blas", CheckStatus::kOk, fmt::format("{} ({})", name_of(BlasKind::kBuiltIn), torch), ""});
  }
  return checks;
}

Check probe_plugin(const std::string& plugin_directory, const std::string& backend) {
  const std::string path = (fs::path(plugin_directory) / ("liblockstep_comm_" + backend + ".so")).string();
  std::error_code error;
  if (!fs::exists(path, error)) {
    return {"backend " + backend, CheckStatus::kFail, path + " is missing",
            fmt::format("install the {} package (make setup), then build again", backend)};
  }
  // DEEPBIND as the communicator does: two copies of Gloo must not share symbols.
  const Library plugin = open_library(path, RTLD_DEEPBIND | RTLD_NODELETE);
  if (!plugin)
    return {"backend " + backend, CheckStatus::kFail, last_error(),
            fmt::format("install the {} library (make setup)", backend)};
  return {"backend " + backend, CheckStatus::kOk, path, ""};
}

}  // namespace lockstep::cli
