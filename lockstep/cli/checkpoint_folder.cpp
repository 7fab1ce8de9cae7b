#include "lockstep/cli/checkpoint_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/spec/job_identity.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kRunsSearched = 1000;

bool has_checkpoints(const fs::path& directory) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    if (entry.path().filename().string().rfind("step-", 0) == 0) return true;
  }
  return false;
}

// Absolute and without the slash that completion leaves at the end.
fs::path tidy(const std::string& given) {
  const fs::path path = fs::absolute(given).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

CheckpointFolder named_folder(const std::string& from) {
  const fs::path given = tidy(from);
  if (fs::exists(given / "manifest.json")) return {given.parent_path(), given};
  if (has_checkpoints(given)) return {given, {}};
  if (has_checkpoints(given / "checkpoints")) return {given / "checkpoints", {}};
  throw environment_error("--resume " + given.string() + ": no checkpoint there",
                          "name a step-* folder, the folder that holds them, or a run folder");
}

// Identity keys in which the run's job differs; nothing when its job cannot be read.
std::optional<std::vector<spec::KeyChange>> differences(const telemetry::RunInfo& run, const spec::Job& job) {
  try {
    std::vector<spec::KeyChange> changes = spec::changes_between(spec::parse_job(run.job_yaml, "run"), job);
    std::erase_if(changes, [](const auto& change) { return !spec::is_identity(change.key); });
    return changes;
  } catch (const UserError&) {
    return std::nullopt;
  }
}

struct Found {
  fs::path folder;     // of the newest run with the same identity; empty: none
  fs::path same_name;  // of the newest run that only has the same name
  std::string run;     // its id
  std::vector<spec::KeyChange> changes;
};

Found search(const fs::path& home, const spec::Job& job, bool unfinished_only) {
  Found found;
  for (const telemetry::RunRow& row : telemetry::open_run_store(home)->runs(kRunsSearched)) {
    if (unfinished_only && row.status == telemetry::RunStatus::kDone) continue;
    const fs::path directory = telemetry::run_folder(home, row.info.id) / "checkpoints";
    if (!has_checkpoints(directory)) continue;
    const auto changes = differences(row.info, job);
    if (changes && changes->empty()) {
      found.folder = directory;
      return found;
    }
    if (found.same_name.empty() && row.info.name == job.name && changes) {
      found.same_name = directory;
      found.run = row.info.id;
      found.changes = *changes;
    }
  }
  return found;
}

CheckpointFolder ordered(const spec::Job& job, const fs::path& home, bool accept_changes) {
  const Found found = search(home, job, false);
  if (!found.folder.empty()) return {found.folder, {}};
  if (found.same_name.empty()) {
    throw environment_error("--resume: no earlier run of job `" + job.name + "` left a checkpoint in " + home.string(),
                            "start it without --resume, or name the folder: --resume FOLDER");
  }
  if (accept_changes) return {found.same_name, {}};
  throw bad_input(fmt::format("--resume: the last run named `{}` ({}) was another job: {}", job.name, found.run,
                              spec::to_string(found.changes)),
                  fmt::format("put it back as it was, name the folder of the run you mean (--resume FOLDER), or add "
                              "--accept-changes to go on from {}",
                              found.same_name.string()));
}

}  // namespace

CheckpointFolder choose_checkpoint_folder(const spec::Job& job, const ResumeWish& wish, const fs::path& home,
                                          const fs::path& run_folder) {
  if (wish.resume != elastic::Resume::kNever && !wish.from.empty()) return named_folder(wish.from);
  if (!job.checkpoint.directory.empty()) return {fs::absolute(job.checkpoint.directory), {}};
  if (wish.resume == elastic::Resume::kAlways) return ordered(job, home, wish.accept_changes);
  if (wish.resume == elastic::Resume::kAuto) {
    if (const fs::path unfinished = search(home, job, true).folder; !unfinished.empty()) return {unfinished, {}};
  }
  return {run_folder / "checkpoints", {}};
}

std::optional<fs::path> saved_by_run(const std::string& id, const fs::path& home) {
  const auto run = telemetry::open_run_store(home)->find(id);
  if (!run) return std::nullopt;
  const fs::path own = telemetry::run_folder(home, run->info.id) / "checkpoints";
  if (has_checkpoints(own)) return own;
  const fs::path named = spec::parse_job(run->info.job_yaml, "run").checkpoint.directory;
  if (!named.empty() && has_checkpoints(named)) return named;
  throw environment_error("run " + run->info.id + " left no checkpoint in " + (named.empty() ? own : named).string(),
                          "name the folder that holds them");
}

elastic::Resume default_resume(const spec::Job& job, bool launched) {
  if (!launched) return elastic::Resume::kNever;
  const auto counts = [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && std::atoi(value) > 0;
  };
  const bool again = counts("TORCHELASTIC_RESTART_COUNT") || counts("SLURM_RESTART_COUNT");
  return again || !job.checkpoint.directory.empty() ? elastic::Resume::kAuto : elastic::Resume::kNever;
}

}  // namespace lockstep::cli
