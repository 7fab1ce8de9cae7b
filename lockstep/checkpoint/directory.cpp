#include "lockstep/checkpoint/directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/manifest.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTempPrefix = ".tmp-";
constexpr const char* kTrashPrefix = ".trash-";
constexpr const char* kProbePrefix = ".probe-";
constexpr const char* kPinned = "pinned";
constexpr const char* kPinText = "not deleted by retention\n";
constexpr double kLockSeconds = 5.0;

bool has_prefix(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

ino_t inode_of(const fs::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

// The inode makes the name unique among what is there.
fs::path trash_name(const fs::path& folder) {
  return folder.parent_path() / (kTrashPrefix + folder.filename().string() + "-" + std::to_string(inode_of(folder)));
}

}  // namespace

UniqueFd lock_directory(const fs::path& directory) {
  const fs::path path = directory / ".lock";
  UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock) {
    throw environment_error(std::string("cannot be written: ") + std::strerror(errno),
                            "make it writable or set checkpoint.directory", {directory.string()});
  }
  const Deadline deadline = Deadline::after(kLockSeconds);
  while (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) break;  // a file system without locks
    if (deadline.expired()) {
      throw environment_error("another run is saving checkpoints into this directory",
                              "give each run its own checkpoint.directory", {directory.string()});
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return lock;
}

fs::path temporary_folder(const fs::path& target, const std::string& session) {
  return target.parent_path() / (kTempPrefix + target.filename().string() + "-" + session);
}

void discard(const fs::path& folder, const FileLayer& files) {
  const UniqueFd handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!handle) return;
  if (::flock(handle.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return;
  files.remove_all(folder);
}

void remove_junk(const fs::path& directory, const fs::path& current, const FileLayer& files) {
  std::vector<fs::path> folders, probes;
  std::error_code error;
  for (auto it = fs::directory_iterator(directory, error); !error && it != fs::end(it); it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name == current.filename().string()) continue;
    if (has_prefix(name, kTempPrefix) || has_prefix(name, kTrashPrefix)) folders.push_back(it->path());
    if (has_prefix(name, kProbePrefix)) probes.push_back(it->path());
  }
  for (const fs::path& folder : folders) discard(folder, files);
  for (const fs::path& probe : probes) files.remove_all(probe);
}

void publish_folder(const fs::path& finished, const fs::path& target, const FileLayer& files) {
  if (!fs::exists(target)) return publish(finished, target, files);
  const bool pinned = is_pinned(target);
  if (files.exchange(finished, target)) {
    files.sync_folder(target.parent_path());
    if (pinned) pin_checkpoint(target, true, files);
    const fs::path trash = trash_name(finished);  // holds the former checkpoint now
    publish(finished, trash, files);
    return discard(trash, files);
  }
  const fs::path trash = trash_name(target);
  publish(target, trash, files);
  publish(finished, target, files);
  if (pinned) pin_checkpoint(target, true, files);
  discard(trash, files);
}

std::vector<fs::path> retain_but(const fs::path& directory, std::int64_t keep, const fs::path& sound,
                                 const FileLayer& files) {
  std::vector<fs::path> deleted;
  std::int64_t left = std::max<std::int64_t>(keep, 1) - 1;  // beside `sound`
  for (const CheckpointInfo& info : list_checkpoints(directory)) {
    if (info.path.filename() == sound.filename() || is_pinned(info.path)) continue;
    if (left-- > 0) continue;
    const UniqueFd handle(::open(info.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!handle || (::flock(handle.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)) continue;
    // Moved away first: a half-deleted checkpoint must not be found under a checkpoint's name.
    const fs::path trash = trash_name(info.path);
    try {
      files.rename(info.path, trash);
    } catch (const UserError&) {
      continue;
    }
    files.remove_all(trash);
    deleted.push_back(info.path);
  }
  return deleted;
}

std::vector<fs::path> retain(const fs::path& directory, std::int64_t keep) {
  if (!fs::is_directory(directory)) return {};
  const UniqueFd lock = lock_directory(directory);
  const auto newest = find_latest(directory);
  return newest ? retain_but(directory, keep, newest->path, system_files()) : std::vector<fs::path>{};
}

void pin_checkpoint(const fs::path& checkpoint, bool pinned, const FileLayer& files) {
  const fs::path file = checkpoint / kPinned;
  if (pinned) {
    write_durable_file(file, kPinText, files);
  } else {
    files.remove_all(file);
  }
  files.sync_folder(checkpoint);
}

bool is_pinned_by_run(const fs::path& checkpoint) {
  std::ifstream file(checkpoint / kPinned);
  std::string line;
  return std::getline(file, line) && line + "\n" == kPinText;
}

bool is_pinned(const fs::path& checkpoint) {
  std::error_code ignored;
  return fs::exists(checkpoint / kPinned, ignored);
}

}  // namespace lockstep::checkpoint
