#include "lockstep/schedulers/slurm_array.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::schedulers {
namespace {

constexpr double kLookSeconds = 3.0;  // between two questions to Slurm
constexpr double kToolSeconds = 30.0;
constexpr double kUnknownSeconds = 15.0;  // after submission, until Slurm lists a task
constexpr const char* kScriptName = "slurm-task.sh";
constexpr const char* kScript = "#!/bin/bash\nexec \"$@\" \"$SLURM_ARRAY_TASK_ID\"\n";

Phase phase_of(const std::string& state) {
  for (const char* word : {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED"})
    if (state == word) return Phase::kQueued;
  for (const char* word : {"RUNNING", "SIGNALING", "STOPPED"})
    if (state == word) return Phase::kRunning;
  if (state == "COMPLETED") return Phase::kDone;
  return state == "CANCELLED" ? Phase::kCancelled : Phase::kFailed;
}

}  // namespace

SlurmArray::SlurmArray(ArrayRequest request)
    : request_(std::move(request)), slurm_(read_slurm_settings(request_.settings)) {}

std::vector<std::string> SlurmArray::command(std::int64_t first, std::int64_t last) const {
  const LaunchSettings& settings = request_.settings;
  const bool in_image = !settings.image.empty();
  const bool moves = !settings.directory.empty() && !in_image;
  std::vector<std::string> words = {
      "sbatch",
      "--parsable",
      fmt::format("--job-name={}", plain_name(request_.name)),
      first == last ? fmt::format("--array={}", first) : fmt::format("--array={}-{}", first, last),
      "--no-requeue",
      "--open-mode=append",
      "--export=ALL",
      fmt::format("--signal={}USR1@{:.0f}", in_image ? "" : "B:", settings.notice_seconds),
      fmt::format("--output={}/slurm-%A-%a.out", slurm_path(request_.folder)),
      fmt::format("--chdir={}", moves ? settings.directory : request_.directory.string())};
  const auto add = [&](const std::vector<std::string>& more) { words.insert(words.end(), more.begin(), more.end()); };
  const std::vector<std::string> resources = resource_options(settings, slurm_, 1, request_.devices, request_.has_gpus);
  add(resources);
  add({(request_.folder / kScriptName).string()});
  if (in_image) {
    add({"srun", "--ntasks=1"});
    for (const std::string& word : resources) {
      if (word.starts_with("--cpus-per-task=")) add({word});
    }
    add(container_options(settings, slurm_, request_.folder));
    add({"--"});
  }
  add(request_.words);
  return words;
}

std::string SlurmArray::submit(std::int64_t first, std::int64_t last) {
  return job_id_of(run_tool(command(first, last), request_.environment));
}

void SlurmArray::submit() {
  require_containers(request_.settings);
  write_file_atomically(request_.folder / kScriptName, kScript);
  const std::lock_guard lock(mutex_);
  const std::string id = submit(0, request_.tasks - 1);
  for (std::int64_t task = 0; task < request_.tasks; ++task) {
    jobs_[task] = id;
    submitted_at_[task] = monotonic_seconds();
  }
}

void SlurmArray::submit_again(std::int64_t task) {
  const std::lock_guard lock(mutex_);
  SpawnOptions options;
  options.argv = {"scancel", "--quiet", fmt::format("{}_{}", jobs_.at(task), task)};
  run_command(std::move(options), kToolSeconds);  // fails for one that is gone
  jobs_[task] = submit(task, task);
  submitted_at_[task] = monotonic_seconds();
}

// One line per task, also of those that ended a short time ago.
void SlurmArray::look() {
  if (monotonic_seconds() - looked_at_ < kLookSeconds) return;
  looked_at_ = monotonic_seconds();
  std::set<std::string> ids;
  for (const auto& [task, id] : jobs_) ids.insert(id);
  SpawnOptions options;
  options.argv = {"squeue", "-h", "-r", "-t", "all", "-j", join({ids.begin(), ids.end()}, ","), "-o", "%F_%K|%T|%r|%N"};
  const CommandResult result = run_command(std::move(options), kToolSeconds);
  if (result.timed_out || !result.status.ok()) return;  // no answer for a moment
  for (const std::string& line : split(result.output, '\n')) {
    const std::vector<std::string> fields = split(trim(line), '|');
    if (fields.size() != 4) continue;
    State& state = states_[fields[0]];
    state.phase = phase_of(fields[1]);
    const std::string& more = state.phase == Phase::kRunning ? fields[3] : fields[2];
    state.detail = printable(more.empty() || more == "None" ? fields[1] : fields[1] + ", " + more);
  }
}

State SlurmArray::state(std::int64_t task) {
  const std::lock_guard lock(mutex_);
  look();
  const auto found = states_.find(fmt::format("{}_{}", jobs_.at(task), task));
  if (found != states_.end()) return found->second;
  State state;
  const bool is_new = monotonic_seconds() - submitted_at_.at(task) < kUnknownSeconds;
  state.phase = is_new ? Phase::kQueued : Phase::kFailed;
  state.detail = is_new ? "submitted" : "Slurm does not know the task";
  return state;
}

void SlurmArray::cancel() {
  const std::lock_guard lock(mutex_);
  std::set<std::string> ids;
  for (const auto& [task, id] : jobs_) ids.insert(id);
  std::vector<std::string> words = {"scancel", "--quiet"};
  words.insert(words.end(), ids.begin(), ids.end());
  if (!ids.empty()) run_tool(words, {}, kToolSeconds);
}

std::string SlurmArray::ids() const {
  const std::lock_guard lock(mutex_);
  std::set<std::string> ids;
  for (const auto& [task, id] : jobs_) ids.insert(id);
  return join({ids.begin(), ids.end()}, ",");
}

}  // namespace lockstep::schedulers
