#include "lockstep/cli/profiles.h"

#include <fmt/format.h>
#include <unistd.h>

#include "lockstep/telemetry/recorder.h"

namespace lockstep::cli {
namespace {

std::string host_name() {
  char host[256] = "localhost";
  gethostname(host, sizeof(host) - 1);
  return host;
}

}  // namespace

std::filesystem::path profile_path(const Placement& placement, spec::Precision precision) {
  return telemetry::home_directory() / "profiles" /
         fmt::format("{}-{}x{}-{}-{}.json", host_name(), placement.world, placement.threads, placement.backend,
                     spec::to_string(precision));
}

std::filesystem::path device_profile_path(const std::string& device) {
  return telemetry::home_directory() / "profiles" / fmt::format("{}-{}.json", host_name(), device);
}

std::optional<cost::Profile> find_profile(const Placement& placement, spec::Precision precision,
                                          const std::string& given) {
  if (!given.empty()) return cost::load_profile(given);
  const std::filesystem::path path = profile_path(placement, precision);
  if (!std::filesystem::exists(path)) return std::nullopt;
  return cost::load_profile(path.string());
}

std::optional<cost::Profile> find_profile(const spec::Job& job, const Placement& placement, const std::string& given) {
  const spec::Device& device = job.cluster.groups.front().device;
  if (!given.empty() || device.is_cpu()) return find_profile(placement, job.precision, given);
  const std::filesystem::path path = device_profile_path("cuda");
  if (job.cluster.devices() != 1 || !std::filesystem::exists(path)) return std::nullopt;
  cost::Profile profile = cost::load_profile(path.string());
  if (!profile.fitted || profile.fitted->hardware != device.kind) return std::nullopt;
  return profile;
}

}  // namespace lockstep::cli
