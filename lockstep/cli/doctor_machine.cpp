// Probes of the machine: processors, memory, disk, limits, sockets, GPU, launcher.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>

#include <fmt/format.h>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/cli/doctor.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

// The file's text, or nothing: absence is an answer here.
std::optional<std::string> try_read(const std::string& path) {
  try {
    return read_file(path, 1 << 20);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

// Value of the first "key : value" or "key: value kB" line.
std::optional<std::string> find_value(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || trim(std::string_view(line).substr(0, colon)) != key) continue;
    return std::string(trim(std::string_view(line).substr(colon + 1)));
  }
  return std::nullopt;
}

bool has_word(const std::string& text, const std::string& word) {
  std::istringstream words(text);
  for (std::string each; words >> each;) {
    if (each == word) return true;
  }
  return false;
}

// The nearest folder of `path` that exists.
fs::path existing_parent(const std::string& path) {
  fs::path folder = fs::absolute(path.empty() ? "." : path);
  std::error_code error;
  while (!fs::is_directory(folder, error) && folder.has_parent_path() && folder != folder.parent_path()) {
    folder = folder.parent_path();
  }
  return folder;
}

std::optional<double> free_bytes(const std::string& folder) {
  struct statvfs status {};
  if (statvfs(folder.c_str(), &status) != 0) return std::nullopt;
  return static_cast<double>(status.f_bavail) * static_cast<double>(status.f_frsize);
}

std::string errno_text() { return std::strerror(errno); }

}  // namespace

Check probe_cpu(const std::string& root) {
  const auto info = try_read(root + "proc/cpuinfo");
  if (!info) return {"processor", CheckStatus::kWarn, "cannot read " + root + "proc/cpuinfo", ""};
  std::int64_t cores = 0;
  std::istringstream lines(*info);
  for (std::string line; std::getline(lines, line);) cores += line.rfind("processor", 0) == 0 ? 1 : 0;
  const std::string flags = find_value(*info, "flags").value_or("");
  const std::string model = find_value(*info, "model name").value_or("unknown model");
  std::string features;
  const std::pair<const char*, const char*> known[] = {{"avx2", "AVX2"}, {"avx512f", "AVX-512"}, {"amx_tile", "AMX"}};
  for (const auto& [flag, name] : known) {
    if (has_word(flags, flag)) features += (features.empty() ? "" : ", ") + std::string(name);
  }
  const std::string detail = fmt::format("{} x {} ({})", cores, model, features.empty() ? "no AVX2" : features);
  if (!features.empty() || flags.empty()) return {"processor", CheckStatus::kOk, detail, ""};
  return {"processor", CheckStatus::kWarn, detail,
          "training works but is several times slower; use a machine with AVX2"};
}

Check probe_cpu_limit(const std::string& root, std::int64_t cores_seen) {
  // cgroup v2: "max 100000" or "quota period" in microseconds; v1 has the two numbers in files of their own.
  double limit = 0;
  if (const auto text = try_read(root + "sys/fs/cgroup/cpu.max")) {
    std::istringstream words(*text);
    std::string quota;
    double period = 0;
    if (words >> quota >> period && quota != "max" && period > 0) limit = std::strtod(quota.c_str(), nullptr) / period;
  } else if (const auto quota = try_read(root + "sys/fs/cgroup/cpu/cpu.cfs_quota_us")) {
    const auto period = try_read(root + "sys/fs/cgroup/cpu/cpu.cfs_period_us");
    const double microseconds = std::strtod(quota->c_str(), nullptr);
    const double of = period ? std::strtod(period->c_str(), nullptr) : 0;
    if (microseconds > 0 && of > 0) limit = microseconds / of;
  }
  if (limit <= 0) return {"cpu limit", CheckStatus::kOk, fmt::format("none; {} cores", cores_seen), ""};
  if (limit >= static_cast<double>(cores_seen)) {
    return {"cpu limit", CheckStatus::kOk, fmt::format("{:.1f} cores allowed, {} seen", limit, cores_seen), ""};
  }
  return {
      "cpu limit", CheckStatus::kWarn,
      fmt::format("the container may use {:.1f} of the {} cores that programs see", limit, cores_seen),
      fmt::format("set threads_per_rank so that ranks x threads is at most {}", std::max(1, static_cast<int>(limit)))};
}

Check probe_memory(const std::string& root) {
  const auto info = try_read(root + "proc/meminfo");
  const auto kilobytes = [&](const char* key) {
    return info ? std::strtod(find_value(*info, key).value_or("0").c_str(), nullptr) * kKiB : 0.0;
  };
  const double total = kilobytes("MemTotal");
  double available = kilobytes("MemAvailable");
  if (total <= 0) return {"memory", CheckStatus::kWarn, "cannot read " + root + "proc/meminfo", ""};
  std::string limit_note;
  if (const auto text = try_read(root + "sys/fs/cgroup/memory.max"); text && text->rfind("max", 0) != 0) {
    const double limit = std::strtod(text->c_str(), nullptr);
    const auto used = try_read(root + "sys/fs/cgroup/memory.current");
    const double left = limit - (used ? std::strtod(used->c_str(), nullptr) : 0.0);
    limit_note = ", container limit " + format_bytes(limit);
    available = std::min(available, std::max(left, 0.0));
  }
  const std::string detail =
      fmt::format("{} available of {}{}", format_bytes(available), format_bytes(total), limit_note);
  // libtorch alone maps about 300 MiB into each rank; the demo runs four.
  if (available < 2 * kGiB) return {"memory", CheckStatus::kWarn, detail, "close programs, or run fewer ranks"};
  return {"memory", CheckStatus::kOk, detail, ""};
}

Check probe_disk(const std::string& run_store) {
  const fs::path folder = existing_parent(run_store);
  const auto bytes = free_bytes(folder.string());
  if (!bytes)
    return {"disk", CheckStatus::kFail, fmt::format("{}: {}", folder.string(), errno_text()),
            "choose another run store"};
  const std::string detail = fmt::format("{} free at {}", format_bytes(*bytes), folder.string());
  if (*bytes < 100 * kMiB)
    return {"disk", CheckStatus::kFail, detail, "free some space, or put the run store elsewhere"};
  if (*bytes < 5 * kGiB) return {"disk", CheckStatus::kWarn, detail, "checkpoints of larger models will not fit"};
  return {"disk", CheckStatus::kOk, detail, ""};
}

Check probe_run_store(const std::string& run_store) {
  const fs::path folder = existing_parent(run_store);
  std::string name = (folder / ".lockstep-doctor-XXXXXX").string();
  const int descriptor = mkstemp(name.data());
  if (descriptor < 0) {
    return {"run store", CheckStatus::kFail, fmt::format("cannot write in {}: {}", folder.string(), errno_text()),
            "make the folder writable, or choose another run store"};
  }
  close(descriptor);
  unlink(name.c_str());
  return {"run store", CheckStatus::kOk, fmt::format("{} is writable", folder.string()), ""};
}

Check probe_shared_memory(const std::string& directory) {
  const auto bytes = free_bytes(directory);
  if (!bytes) {
    return {"shared memory", CheckStatus::kWarn, fmt::format("{}: {}", directory, errno_text()),
            "mount a tmpfs there; ranks fall back to sockets"};
  }
  const std::string detail = fmt::format("{} free at {}", format_bytes(*bytes), directory);
  // Docker's default is 64 MiB, one bucket of gradients per rank does not fit for long.
  if (*bytes < 128 * kMiB)
    return {"shared memory", CheckStatus::kWarn, detail, "start the container with --shm-size=1g"};
  return {"shared memory", CheckStatus::kOk, detail, ""};
}

Check probe_open_files(std::uint64_t soft_limit, std::uint64_t hard_limit) {
  constexpr std::uint64_t kWanted = 1024;
  const std::string detail = fmt::format("{} (hard limit {})", soft_limit, hard_limit);
  if (soft_limit >= kWanted) return {"open files", CheckStatus::kOk, detail, ""};
  return {"open files", CheckStatus::kWarn, detail, fmt::format("ulimit -n {}", std::min(kWanted, hard_limit))};
}

Check probe_loopback() {
  const Check failed{"loopback", CheckStatus::kFail, "", "allow sockets on 127.0.0.1: ranks of one machine meet there"};
  const auto fail = [&](const char* call) {
    Check check = failed;
    check.detail = fmt::format("{}: {}", call, errno_text());
    return check;
  };
  const UniqueFd server(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!server) return fail("socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(server.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) return fail("bind");
  if (listen(server.get(), 1) != 0) return fail("listen");
  if (getsockname(server.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return fail("getsockname");
  const UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!client) return fail("socket");
  // The connection completes in the listener's backlog: a blocking connect on loopback does not wait for accept.
  timeval timeout{.tv_sec = 2, .tv_usec = 0};
  setsockopt(client.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  if (connect(client.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) return fail("connect");
  return {"loopback", CheckStatus::kOk, "sockets on 127.0.0.1 work", ""};
}

Check probe_clock() {
  // A clock before the release of this program breaks certificates, retention and the order of runs.
  constexpr double kRelease = 1735689600;  // 2025-01-01
  const double before = monotonic_seconds();
  usleep(2000);
  const double passed = monotonic_seconds() - before;
  if (passed <= 0)
    return {"clock", CheckStatus::kFail, "the monotonic clock does not advance",
            "check the virtual machine's clock source"};
  const std::string now = utc_timestamp(unix_seconds());
  if (unix_seconds() < kRelease)
    return {"clock", CheckStatus::kWarn, now + " is in the past", "set the clock (timedatectl set-ntp true)"};
  return {"clock", CheckStatus::kOk, now, ""};
}

Check probe_gpu(const std::string& root, const Environment& environment) {
  std::error_code error;
  std::int64_t devices = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(root + "dev", error)) {
    const std::string name = entry.path().filename().string();
    const bool numbered =
        name.size() > 6 && std::all_of(name.begin() + 6, name.end(), [](unsigned char c) { return std::isdigit(c); });
    devices += name.rfind("nvidia", 0) == 0 && numbered ? 1 : 0;
  }
  const auto driver = try_read(root + "proc/driver/nvidia/version");
  if (devices == 0 && !driver) return {"gpu", CheckStatus::kOk, kNoGpu, ""};
  if (!driver)
    return {"gpu", CheckStatus::kFail, fmt::format("{} NVIDIA devices but no driver loaded", devices),
            "install the NVIDIA driver"};
  if (devices == 0)
    return {"gpu", CheckStatus::kWarn, "NVIDIA driver loaded but no /dev/nvidia0",
            "start the container with --gpus all"};
  std::string detail = fmt::format("{} NVIDIA GPU{}", devices, devices == 1 ? "" : "s");
  const auto visible = environment.find("CUDA_VISIBLE_DEVICES");
  if (visible != environment.end()) detail += ", CUDA_VISIBLE_DEVICES=" + printable(visible->second);
  if (root == "/") {
    try {
      SpawnOptions query;
      query.argv = {"nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"};
      const CommandResult answer = run_command(query, 10.0);
      if (answer.status.ok()) detail += ": " + printable(trim(split(answer.output, '\n').front()), 100);
    } catch (const UserError&) {
      detail += " (nvidia-smi is not installed)";
    }
  }
  return {"gpu", CheckStatus::kOk, detail, ""};
}

Check probe_launcher(const Environment& environment) {
  const std::pair<const char*, const char*> known[] = {{"SLURM_JOB_ID", "Slurm job"},
                                                       {"OMPI_COMM_WORLD_SIZE", "Open MPI, world size"},
                                                       {"PMI_SIZE", "PMI, world size"},
                                                       {"TORCHELASTIC_RUN_ID", "torchrun, run"},
                                                       {"KUBERNETES_SERVICE_HOST", "Kubernetes, service"}};
  std::string found;
  for (const auto& [variable, name] : known) {
    const auto value = environment.find(variable);
    if (value != environment.end())
      found += fmt::format("{}{} {}", found.empty() ? "" : "; ", name, printable(value->second));
  }
  return {"launcher", CheckStatus::kOk, found.empty() ? "none; lockstep spawns its ranks itself" : found, ""};
}

}  // namespace lockstep::cli
