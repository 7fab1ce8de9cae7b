// The folder that holds a run's checkpoints: one writer at a time, hidden folders, publishing, retention.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/checkpoint/file_layer.h"

namespace lockstep::checkpoint {

// One save at a time in a directory: junk of a dead run looks like the work of a live one. Waits a few seconds, then
// throws UserError (environment). The kernel drops the lock when its holder dies.
UniqueFd lock_directory(const std::filesystem::path& directory);

// The hidden folder that a save of `target` is written into; `session` tells the attempts of one run apart.
std::filesystem::path temporary_folder(const std::filesystem::path& target, const std::string& session);

// Removes what crashed saves left behind, but for `current`.
void remove_junk(const std::filesystem::path& directory, const std::filesystem::path& current, const FileLayer& files);

// Removes a hidden folder unless a reader still holds it under its former name.
void discard(const std::filesystem::path& folder, const FileLayer& files);

// Puts the finished, durable folder in its place, where a checkpoint of the same step may stand. Durable on return.
void publish_folder(const std::filesystem::path& finished, const std::filesystem::path& target, const FileLayer& files);

// Deletes the oldest until `keep` are left. `sound` is known to be complete and stays whatever its step: a new run in
// an old directory counts from 0. Pinned ones stay and are not counted. The caller holds the directory's lock.
std::vector<std::filesystem::path> retain_but(const std::filesystem::path& directory, std::int64_t keep,
                                              const std::filesystem::path& sound, const FileLayer& files);

}  // namespace lockstep::checkpoint
