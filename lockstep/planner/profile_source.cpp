#include "lockstep/planner/profile_source.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "lockstep/base/counted.h"
#include "lockstep/base/error.h"
#include "lockstep/planner/observations.h"
#include "lockstep/spec/backends.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::planner {
namespace {

std::filesystem::path path_of(const std::string& what) {
  char host[256] = "localhost";
  gethostname(host, sizeof(host) - 1);
  return telemetry::home_directory() / "profiles" / fmt::format("{}-{}.json", host, what);
}

}  // namespace

Ranks ranks_here(const spec::Cluster& cluster, std::int64_t threads, const std::string& backend, std::int64_t here) {
  Ranks ranks{.world = cluster.devices(), .threads = threads, .backend = backend};
  const auto cores = static_cast<std::int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  if (threads <= 0) ranks.threads = std::max<std::int64_t>(1, cores / std::max<std::int64_t>(1, here));
  if (backend.empty()) ranks.backend = ranks.world == 1 ? "local" : cluster.is_cpu() ? spec::kUsualCpuBackend : "nccl";
  return ranks;
}

Ranks ranks_here(const spec::Job& job) {
  return ranks_here(job.cluster, job.threads_per_rank, job.communication.backend, job.cluster.devices());
}

std::filesystem::path profile_path(const Ranks& ranks, spec::Precision precision) {
  return path_of(fmt::format("{}x{}-{}-{}", ranks.world, ranks.threads, ranks.backend, spec::to_string(precision)));
}

std::filesystem::path device_profile_path(const std::string& device) { return path_of(device); }

std::string named_profile(const std::string& given) {
  const char* variable = std::getenv("LOCKSTEP_PROFILE");
  return !given.empty() || variable == nullptr ? given : variable;
}

namespace {

std::optional<cost::Profile> unconditioned(const spec::Cluster& cluster, spec::Precision precision, const Ranks& ranks,
                                           const std::string& name) {
  const std::string named = named_profile(name);
  if (!named.empty()) return cost::find_profile(named);
  if (cluster.is_cpu()) {
    const std::filesystem::path path = profile_path(ranks, precision);
    if (!std::filesystem::exists(path)) return std::nullopt;
    return cost::load_profile(path.string());
  }
  const std::filesystem::path measured = device_profile_path("cuda");
  if (cluster.devices() == 1 && std::filesystem::exists(measured)) {
    cost::Profile profile = cost::load_profile(measured.string());
    if (profile.fitted && profile.fitted->hardware == cluster.groups.front().device.kind) return profile;
  }
  return cost::engine_profile_for(cluster);
}

}  // namespace

std::optional<cost::Profile> find_profile(const spec::Cluster& cluster, spec::Precision precision, const Ranks& ranks,
                                          const std::string& name) {
  auto profile = unconditioned(cluster, precision, ranks, name);
  if (profile) profile = conditioned(*profile).profile;
  return profile;
}

namespace {

// What measures just this: the defaults of `calibrate` are those of the demo's job.
std::string calibration_of(const Ranks& ranks, spec::Precision precision) {
  const Ranks usual = ranks_here({}, 0, ranks.backend, ranks.world);
  std::string command = fmt::format("lockstep calibrate --ranks {} --backend {}", ranks.world, ranks.backend);
  if (ranks.threads != usual.threads) command += fmt::format(" threads_per_rank={}", ranks.threads);
  if (precision != spec::Precision::kFp32) command += fmt::format(" precision={}", spec::to_string(precision));
  return command;
}

}  // namespace

cost::Profile require_profile(const spec::Cluster& cluster, spec::Precision precision, const Ranks& ranks,
                              const std::string& name) {
  if (auto profile = find_profile(cluster, precision, ranks, name)) return std::move(*profile);
  throw environment_error(
      fmt::format("there is no {} profile of this machine for {} of {} over {}", spec::to_string(precision),
                  counted(ranks.world, "rank"), counted(ranks.threads, "thread"), ranks.backend),
      fmt::format("run `{}` first, or name one with --profile", calibration_of(ranks, precision)));
}

}  // namespace lockstep::planner
