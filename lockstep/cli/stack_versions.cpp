#include "lockstep/cli/stack_versions.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/doctor.h"
#include "lockstep/cli/engine_library.h"
#include "lockstep/spec/job.h"
#include "lockstep/tune/evaluators/process.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

constexpr double kPatienceSeconds = 10;

// Reads metadata only: importing torch itself would take seconds.
constexpr const char* kListPackages = R"py(
import importlib.metadata, json, platform
found = {"python": platform.python_version()}
for name in ("torch", "transformers", "deepspeed", "accelerate", "jax", "nvidia-nccl-cu12", "nvidia-nccl-cu13"):
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
)py";

std::string output_of(std::vector<std::string> argv) {
  try {
    SpawnOptions options;
    options.argv = std::move(argv);
    const CommandResult result = run_command(options, kPatienceSeconds);
    return result.timed_out ? "" : result.output;
  } catch (const UserError&) {
    return "";
  }
}

std::string find_in_path(const std::string& program) {
  if (program.find('/') != std::string::npos) return program;
  const char* path = std::getenv("PATH");
  for (const std::string& folder : split(path != nullptr ? path : "", ':')) {
    const std::string file = fmt::format("{}/{}", folder, program);
    if (access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

void add_nccl(nlohmann::json& versions) {
  void* library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return;
  int version = 0;
  const auto ask = reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion"));
  if (ask != nullptr && ask(&version) == 0 && version >= 10000)
    versions["nccl"] = fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  dlclose(library);
}

void add_machine(nlohmann::json& versions) {
  utsname system{};
  if (uname(&system) == 0) versions["kernel"] = fmt::format("{} {}", system.sysname, system.release);
  versions["processor"] = probe_cpu("/").detail;
  if (!fs::exists("/proc/driver/nvidia/version")) return;
  versions["gpu"] = probe_gpu("/", {}).detail;
  add_nccl(versions);
}

// Asked of a process of its own: this one stays free of libtorch.
void add_engine(nlohmann::json& versions) {
  const nlohmann::json answer =
      nlohmann::json::parse(output_of({executable_path().string(), "doctor", "--json"}), nullptr, false);
  if (!answer.is_object() || !answer.contains("checks") || !answer["checks"].is_array()) return;
  for (const auto& check : answer["checks"]) {
    const std::string name = check.value("name", "");
    if (name == "libtorch" || name == "blas") versions[name] = check.value("detail", "");
  }
}

void add_packages(nlohmann::json& versions, const std::string& python) {
  if (python.empty()) return;
  const nlohmann::json found = nlohmann::json::parse(output_of({python, "-c", kListPackages}), nullptr, false);
  if (found.is_object()) versions.update(found);
}

// What the figures are of.
void add_job(nlohmann::json& versions, const nlohmann::json& evaluator) {
  const std::string file = evaluator.value("job", "");
  if (file.empty()) return;
  try {
    const spec::Job job = spec::load_job(file, evaluator.value("overrides", std::vector<std::string>{}));
    versions["model"] = job.model.name;
    versions["cluster"] = job.cluster.name;
    if (job.model.is_language_model()) versions["sequence length"] = std::to_string(job.batch.sequence_length);
  } catch (const UserError&) {  // the trials will say what is wrong with it
  }
}

}  // namespace

std::string python_of(const std::vector<std::string>& argv) {
  if (argv.empty()) return "";
  const std::string name = fs::path(argv[0]).filename().string();
  const std::string program = find_in_path(argv[0]);
  if (program.empty()) return "";
  if (name.starts_with("python")) return program;
  if (name != "torchrun" && name != "accelerate" && name != "deepspeed") return "";
  for (const char* sibling : {"python3", "python"}) {
    const std::string python = (fs::path(program).parent_path() / sibling).string();
    if (access(python.c_str(), X_OK) == 0) return python;
  }
  return "";
}

nlohmann::json stack_versions(const std::string& kind, const std::vector<std::string>& argv) {
  nlohmann::json versions{{"lockstep", LOCKSTEP_VERSION}};
  if (kind == "simulate") return versions;
  add_machine(versions);
  if (kind == "engine") {
    add_engine(versions);
  } else {
    add_packages(versions, python_of(argv));
  }
  return versions;
}

tune::StudySetup with_versions(tune::StudySetup setup) {
  const std::string kind = setup.evaluator.value("kind", ""), command = setup.evaluator.value("command", "");
  nlohmann::json versions =
      stack_versions(kind, command.empty() ? std::vector<std::string>{} : tune::split_command(command).argv);
  add_job(versions, setup.evaluator);
  versions.update(setup.versions);
  setup.versions = std::move(versions);
  return setup;
}

std::vector<std::string> version_changes(const nlohmann::json& then, const nlohmann::json& now) {
  std::vector<std::string> changes;
  if (!then.is_object() || !now.is_object()) return changes;
  for (const auto& [name, value] : then.items()) {
    if (!value.is_string()) continue;
    const std::string here = now.contains(name) && now[name].is_string() ? now[name].get<std::string>() : "not found";
    if (here != value.get<std::string>())
      changes.push_back(fmt::format("{}: {} then, {} now", name, value.get<std::string>(), here));
  }
  return changes;
}

}  // namespace lockstep::cli
