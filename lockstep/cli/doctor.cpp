#include "lockstep/cli/doctor.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/enum_names.h"
#include "lockstep/base/error.h"
#include "lockstep/spec/backends.h"

extern char** environ;

namespace lockstep::cli {
namespace {

Environment own_environment() {
  Environment variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return variables;
}

const char* name_of(CheckStatus status) { return named<CheckStatus::kFail>(status, "ok", "warn", "FAIL"); }

void print_table(const std::vector<Check>& checks) {
  std::size_t width = 0;
  for (const Check& check : checks) width = std::max(width, check.name.size());
  for (const Check& check : checks) {
    fmt::print("{:<4}  {:<{}}  {}\n", name_of(check.status), check.name, width, check.detail);
    if (!check.fix.empty()) fmt::print("{:<4}  {:<{}}  -> {}\n", "", "", width, check.fix);
  }
}

void print_json(const std::vector<Check>& checks, bool ok) {
  nlohmann::json list = nlohmann::json::array();
  for (const Check& check : checks) {
    std::string status = name_of(check.status);
    std::transform(status.begin(), status.end(), status.begin(), [](unsigned char c) { return std::tolower(c); });
    list.push_back({{"name", check.name}, {"status", status}, {"detail", check.detail}, {"fix", check.fix}});
  }
  fmt::print("{}\n", nlohmann::json({{"schema", "lockstep.doctor/1"}, {"ok", ok}, {"checks", list}}).dump());
}

}  // namespace

std::vector<Check> run_checks(const DoctorOptions& options) {
  const Environment environment = options.environment.empty() ? own_environment() : options.environment;
  std::vector<Check> checks;
  checks.push_back(probe_cpu(options.root));
  checks.push_back(probe_cpu_limit(options.root, sysconf(_SC_NPROCESSORS_ONLN)));
  checks.push_back(probe_memory(options.root));
  checks.push_back(probe_disk(options.run_store));
  checks.push_back(probe_run_store(options.run_store));
  checks.push_back(probe_shared_memory(options.root + "dev/shm"));
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  checks.push_back(probe_open_files(files.rlim_cur, files.rlim_max));
  for (Check& check : probe_engine(options.engine_library)) checks.push_back(std::move(check));
  checks.push_back(probe_gpu(options.root, environment));
  const bool gpu = checks.back().detail != kNoGpu;
  for (const char* backend : {"tcp", "gloo", "mpi", "nccl"}) {
    Check check = probe_plugin(options.plugin_directory, backend);
    // Without a GPU NCCL is not needed; tcp is what a plain `lockstep train` uses; Gloo and MPI are for who asks for
    // them.
    if (check.status == CheckStatus::kFail && std::string(backend) != spec::kUsualCpuBackend) {
      check.status = std::string(backend) == "nccl" && !gpu ? CheckStatus::kOk : CheckStatus::kWarn;
      if (check.status == CheckStatus::kOk)
        check.detail = "not installed, and not needed without a GPU", check.fix.clear();
    }
    checks.push_back(std::move(check));
  }
  checks.push_back(probe_loopback());
  checks.push_back(probe_launcher(environment));
  checks.push_back(probe_clock());
  return checks;
}

int run_doctor(const DoctorOptions& options) {
  const std::vector<Check> checks = run_checks(options);
  const auto count = [&](CheckStatus status) {
    return std::count_if(checks.begin(), checks.end(), [&](const Check& check) { return check.status == status; });
  };
  const auto failed = count(CheckStatus::kFail);
  if (options.json) {
    print_json(checks, failed == 0);
  } else {
    print_table(checks);
    if (failed > 0) {
      fmt::print("\n{} of {} checks failed; fix what is marked FAIL, then run `lockstep doctor` again\n", failed,
                 checks.size());
    } else {
      fmt::print("\nready to train ({} warnings); next: lockstep demo\n", count(CheckStatus::kWarn));
    }
  }
  return static_cast<int>(failed == 0 ? ExitCode::kOk : ExitCode::kEnvironment);
}

}  // namespace lockstep::cli
