// Which folder a run keeps its checkpoints in, and for a resume which earlier run it belongs to.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/elastic/rank_request.h"
#include "lockstep/spec/job.h"

namespace lockstep::cli {

struct ResumeWish {
  elastic::Resume resume = elastic::Resume::kNever;
  std::string from;             // a step-* folder, the folder that holds them, or a run folder; "": look for it
  bool accept_changes = false;  // a run of the same name will do
};

struct CheckpointFolder {
  std::filesystem::path folder;
  std::filesystem::path named;  // the one checkpoint that was asked for; empty: the newest
};

// A folder named by the wish, else job.checkpoint.directory, else that of the newest run under `home` whose job has the
// same identity (spec/job_identity.h) and left checkpoints, else `run_folder`/checkpoints. With kAuto a run that is
// done is not gone on with. Throws UserError when a resume is an order and there is nothing, or only a run of the same
// name whose job differs: then it says in what.
CheckpointFolder choose_checkpoint_folder(const spec::Job& job, const ResumeWish& wish,
                                          const std::filesystem::path& home, const std::filesystem::path& run_folder);

// Where the run of that id (its beginning, "last") keeps its checkpoints; nothing where there is no such run. Throws
// UserError where it left none.
std::optional<std::filesystem::path> saved_by_run(const std::string& id, const std::filesystem::path& home);

// What a run does that was told nothing: under a launcher that may start it again (`launched`) kAuto where it would
// find its own checkpoints, that is with a checkpoint.directory, or when the launcher says that this is another try.
elastic::Resume default_resume(const spec::Job& job, bool launched);

}  // namespace lockstep::cli
