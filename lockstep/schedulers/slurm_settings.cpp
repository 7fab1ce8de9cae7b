#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/schedulers/scheduler.h"
#include "lockstep/schedulers/slurm.h"

namespace lockstep::schedulers {
namespace {

constexpr double kLongestNotice = 65535;  // sbatch's own limit of --signal

// What we set ourselves, or what would run something else.
constexpr const char* kOurs[] = {"array",
                                 "batch",
                                 "chdir",
                                 "clusters",
                                 "cpus-per-task",
                                 "error",
                                 "export",
                                 "help",
                                 "input",
                                 "job-name",
                                 "kill-on-invalid-dep",
                                 "no-kill",
                                 "nodes",
                                 "ntasks",
                                 "ntasks-per-node",
                                 "open-mode",
                                 "output",
                                 "parsable",
                                 "requeue",
                                 "no-requeue",
                                 "signal",
                                 "test-only",
                                 "time",
                                 "usage",
                                 "version",
                                 "wait",
                                 "wrap"};

// "--mail-type=END": sbatch takes unique beginnings of names as well.
void check_option(const MapReader& reader, const std::string& option) {
  const std::string name = option.substr(0, option.find('='));
  const bool is_long =
      option.size() > 2 && option.starts_with("--") && std::isalpha(static_cast<unsigned char>(option[2]));
  if (!is_long || !is_printable(option)) {
    throw reader.error_at("options",
                          fmt::format("launch.slurm.options: `{}` is not an option of sbatch", printable(option)),
                          "write them as --name=value, one each");
  }
  for (const char* ours : kOurs) {
    if (!fmt::format("--{}", ours).starts_with(name)) continue;
    throw reader.error_at("options", fmt::format("launch.slurm.options: --{} is set by lockstep", ours),
                          "see docs/reference/launch.md for the key that sets it");
  }
}

void check_mount(const MapReader& reader, const std::string& mount) {
  if (mount.starts_with('/') && is_printable(mount) && mount.find(',') == std::string::npos) return;
  throw reader.error_at("mounts", fmt::format("launch.slurm.mounts: `{}` is not a mount", printable(mount)),
                        "write /here:/there");
}

std::string time_of(double seconds) {
  const auto minutes = static_cast<std::int64_t>(std::ceil(seconds / 60));
  return fmt::format("{}", minutes);
}

}  // namespace

SlurmSettings read_slurm_settings(const LaunchSettings& settings) {
  SlurmSettings slurm;
  MapReader reader = settings.section("slurm");
  reader.name("partition", slurm.partition);
  reader.name("account", slurm.account);
  reader.name("qos", slurm.qos);
  reader.name("constraint", slurm.constraint);
  reader.name("reservation", slurm.reservation);
  reader.name("nodelist", slurm.node_list);
  reader.name("exclude", slurm.exclude);
  reader.name("gres", slurm.gres);
  reader.boolean("exclusive", slurm.exclusive);
  reader.texts("mounts", slurm.mounts);
  reader.texts("options", slurm.options);
  reader.finish();
  for (const std::string& option : slurm.options) check_option(reader, option);
  for (const std::string& mount : slurm.mounts) check_mount(reader, mount);
  if (!settings.hosts.empty()) {
    throw bad_input("Slurm chooses the nodes itself", "leave the list of machines out, or set launch.slurm.nodelist");
  }
  if (settings.time_seconds > 0 && settings.notice_seconds >= settings.time_seconds) {
    throw bad_input(fmt::format("launch.notice of {} is not below launch.time of {}",
                                format_seconds(settings.notice_seconds), format_seconds(settings.time_seconds)),
                    "the run would be stopped as soon as it begins");
  }
  if (settings.notice_seconds > kLongestNotice) {
    throw bad_input(fmt::format("launch.notice is more than the {:.0f} s that Slurm allows", kLongestNotice),
                    "lower it");
  }
  return slurm;
}

std::vector<std::string> resource_options(const LaunchSettings& settings, const SlurmSettings& slurm,
                                          std::int64_t nodes, std::int64_t devices, bool has_gpus) {
  std::vector<std::string> words = {fmt::format("--nodes={}", nodes), "--ntasks-per-node=1"};
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) words.push_back(fmt::format("--{}={}", name, value));
  };
  std::string gres = slurm.gres;
  if (gres.empty() && has_gpus) gres = fmt::format("gpu:{}", devices);
  if (gres != "none") add("gres", gres);
  // Slurm's own default is one CPU for a whole node of ranks.
  const std::int64_t cpus = settings.cpus_per_node > 0 ? settings.cpus_per_node : (slurm.exclusive ? 0 : devices);
  if (cpus > 0) words.push_back(fmt::format("--cpus-per-task={}", cpus));
  if (settings.memory_per_node > 0) add("mem", fmt::format("{:.0f}M", std::ceil(settings.memory_per_node / 1048576)));
  if (settings.time_seconds > 0) add("time", time_of(settings.time_seconds));
  add("partition", slurm.partition);
  add("account", slurm.account);
  add("qos", slurm.qos);
  add("constraint", slurm.constraint);
  add("reservation", slurm.reservation);
  add("nodelist", slurm.node_list);
  add("exclude", slurm.exclude);
  if (slurm.exclusive) words.emplace_back("--exclusive");
  words.insert(words.end(), slurm.options.begin(), slurm.options.end());
  return words;
}

std::vector<std::string> container_options(const LaunchSettings& settings, const SlurmSettings& slurm,
                                           const std::filesystem::path& folder) {
  if (folder.string().find_first_of(",:") != std::string::npos) {
    throw bad_input(fmt::format("{} cannot be mounted: its name holds a comma or a colon", printable_path(folder)),
                    "set LOCKSTEP_HOME to another folder");
  }
  std::vector<std::string> mounts = {folder.string() + ":" + folder.string()};
  mounts.insert(mounts.end(), slurm.mounts.begin(), slurm.mounts.end());
  std::vector<std::string> words = {"--container-image=" + settings.image, "--container-mounts=" + join(mounts, ",")};
  if (!settings.directory.empty()) words.push_back("--container-workdir=" + settings.directory);
  return words;
}

void require_containers(const LaunchSettings& settings) {
  if (settings.image.empty()) return;
  if (run_tool({"srun", "--help"}).find("--container-image") != std::string::npos) return;
  throw environment_error("launch.image needs Slurm's container plugin Pyxis, and this srun has no --container-image",
                          "ask for Pyxis, or leave launch.image out and install lockstep on the nodes");
}

std::string slurm_path(const std::filesystem::path& path) {
  std::string text;
  for (const char c : path.string()) text.append(c == '%' ? 2 : 1, c);
  return text;
}

std::string job_id_of(const std::string& printed) {
  const std::string id = split(trim(printed), ';').front();
  if (!id.empty() && id.find_first_not_of("0123456789") == std::string::npos) return id;
  throw environment_error(fmt::format("sbatch printed `{}` instead of a job's number", printable(printed)),
                          "is the `sbatch` found in PATH Slurm's?");
}

std::string job_field(const std::string& line, const std::string& key) {
  const std::string wanted = " " + key + "=";
  const std::string text = " " + line;
  const std::size_t found = text.find(wanted);  // the first: fields that users choose come later
  if (found == std::string::npos) return "";
  const std::size_t begin = found + wanted.size();
  return text.substr(begin, text.find_first_of(" \n", begin) - begin);
}

}  // namespace lockstep::schedulers
