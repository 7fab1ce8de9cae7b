#include "lockstep/engine/settle_checkpoints.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/health_note.h"

namespace lockstep::engine {
namespace {

namespace fs = std::filesystem;

// A checkpoint that the user named: it must be the newest of its folder, or later ones would be found next time.
void check_named(const elastic::RankRequest& request) {
  const auto found = checkpoint::list_checkpoints(request.checkpoint_directory);
  const fs::path named = fs::path(request.resume_from).filename();
  const bool is_listed = std::ranges::any_of(found, [&](const auto& info) { return info.path.filename() == named; });
  // What is not listed is damaged: who reads it says how.
  if (!is_listed || found.front().path.filename() == named) return;
  throw bad_input(
      fmt::format("{} also holds step {}, newer than the one named", request.checkpoint_directory, found.front().step),
      "copy the checkpoint you want to a folder of its own and resume there");
}

// After a run whose numbers went wrong: what it saved after the last sound checkpoint is not gone on from.
void obey_health_note(const fs::path& folder, const Host& host) {
  const auto note = checkpoint::read_health_note(folder);
  if (!note) return;
  bool has_sound = false;
  for (const checkpoint::CheckpointInfo& info : checkpoint::list_checkpoints(folder)) {
    has_sound = has_sound || info.step == note->sound_step;
  }
  if (has_sound) {
    const auto moved = checkpoint::set_aside_after(folder, note->sound_step);
    if (!moved.empty()) {
      host.note(
          fmt::format("warning: the last run failed at step {} ({}); what it saved after step {} is set aside: {} "
                      "to {}",
                      note->failed_step, note->reason, note->sound_step, moved.front().filename().string(),
                      moved.back().filename().string()));
    }
  }
  checkpoint::remove_health_note(folder);
}

void settle_newest(elastic::RankRequest& request, const Host& host) {
  const std::string& folder = request.checkpoint_directory;
  obey_health_note(folder, host);
  const auto latest =
      checkpoint::find_latest(folder, [&](const std::string& warning) { host.note("warning: " + warning); });
  if (latest) {
    request.resume_from = latest->path.string();
    return;
  }
  const bool any = !checkpoint::list_checkpoints(folder).empty();
  if (request.options.resume == elastic::Resume::kAuto && !any) return;
  throw environment_error((any ? "no checkpoint is sound in " : "--resume: no sound checkpoint in ") + folder,
                          "start without --resume, or name the folder: --resume FOLDER");
}

}  // namespace

std::unique_ptr<checkpoint::Lease> settle_checkpoints(elastic::RankRequest& request, const Host& host) {
  if (request.checkpoint_directory.empty()) return nullptr;
  auto lease = checkpoint::Lease::take(request.checkpoint_directory, request.run_id);
  if (!request.resume_from.empty()) {
    check_named(request);
  } else if (request.options.resume != elastic::Resume::kNever) {
    settle_newest(request, host);
  } else if (const auto found = checkpoint::list_checkpoints(request.checkpoint_directory); !found.empty()) {
    throw bad_input(
        fmt::format("{} already holds checkpoints up to step {}", request.checkpoint_directory, found.front().step),
        "add --resume to go on from there, or choose another checkpoint.directory");
  }
  return lease;
}

}  // namespace lockstep::engine
