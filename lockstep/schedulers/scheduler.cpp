#include "lockstep/schedulers/scheduler.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/schedulers/all.h"

namespace lockstep::schedulers {
namespace {

struct Entry {
  const char* name;
  std::unique_ptr<Scheduler> (*make)(const LaunchSettings& settings);
};

// In the order they are shown in.
constexpr Entry kSchedulers[] = {
    {"slurm", make_slurm}, {"kubernetes", make_kubernetes}, {"kubeflow", make_kubeflow},
    {"ray", make_ray},     {"skypilot", make_skypilot},     {"ssh", make_ssh},
    {"mpi", make_mpi},
};

std::string last_line(const std::string& text) {
  const std::vector<std::string> lines = split(trim(text), '\n');
  return printable(trim(lines.back()), 300);
}

}  // namespace

std::vector<std::string> scheduler_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kSchedulers) names.emplace_back(entry.name);
  return names;
}

std::unique_ptr<Scheduler> make_scheduler(const std::string& name, const LaunchSettings& settings) {
  for (const Entry& entry : kSchedulers) {
    if (name == entry.name) return entry.make(settings);
  }
  std::vector<std::string> names = scheduler_names();
  names.emplace_back("local");
  throw bad_input(fmt::format("--on {}: there is no such scheduler", printable(name)), did_you_mean(name, names));
}

std::string run_tool(const std::vector<std::string>& argv, const std::map<std::string, std::string>& environment,
                     double timeout_seconds) {
  SpawnOptions options;
  options.argv = argv;
  options.environment = environment;
  const CommandResult result = run_command(std::move(options), timeout_seconds);
  if (result.timed_out) {
    throw environment_error(fmt::format("`{}` did not answer in {:.0f} s", argv.front(), timeout_seconds),
                            "is the scheduler up?");
  }
  if (result.status.ok()) return result.output;
  const std::string said = last_line(result.error.empty() ? result.output : result.error);
  throw environment_error(fmt::format("`{}` failed with {}: {}", argv.front(), result.status.to_string(), said),
                          "see what it says; --dry-run shows the whole command");
}

}  // namespace lockstep::schedulers
