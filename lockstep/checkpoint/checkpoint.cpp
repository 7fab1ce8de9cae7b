#include "lockstep/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/manifest.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kTempPrefix = ".tmp-";
constexpr const char* kTrashPrefix = ".trash-";
constexpr const char* kPartPrefix = ".part-";  // what each rank tells rank 0 about its files
constexpr double kLockSeconds = 5.0;

bool has_prefix(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

// Removes a hidden folder unless a reader still holds it under its former name.
void discard(const fs::path& folder) {
  const UniqueFd handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!handle) return;
  if (::flock(handle.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return;
  std::error_code ignored;  // what remains is tried again at the next save
  fs::remove_all(folder, ignored);
}

void remove_junk(const fs::path& directory) {
  std::vector<fs::path> junk;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (has_prefix(name, kTempPrefix) || has_prefix(name, kTrashPrefix)) junk.push_back(entry.path());
  }
  for (const fs::path& folder : junk) discard(folder);
}

ino_t inode_of(const fs::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

// The inode makes the name unique among what is there.
fs::path trash_name(const fs::path& folder) {
  return folder.parent_path() / (kTrashPrefix + folder.filename().string() + "-" + std::to_string(inode_of(folder)));
}

std::string temp_name(const fs::path& target, const std::string& run_id) {
  return kTempPrefix + target.filename().string() + (run_id.empty() ? "" : "-" + run_id);
}

// One save at a time in a directory: junk of a dead run looks like the work of a live one. The kernel drops the lock
// when its holder dies.
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

// Puts the finished folder in its place, where a checkpoint of the same step may stand.
void publish_folder(const fs::path& temp, const fs::path& target) {
  if (!fs::exists(target)) return publish(temp, target);
#ifdef RENAME_EXCHANGE
  if (::renameat2(AT_FDCWD, temp.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
    sync_folder(target.parent_path());
    const fs::path trash = trash_name(temp);  // holds the former checkpoint now
    publish(temp, trash);
    return discard(trash);
  }
#endif
  const fs::path trash = trash_name(target);
  publish(target, trash);
  publish(temp, target);
  discard(trash);
}

// `sound` is known to be complete and stays whatever its step: a new run in an old directory counts from 0.
std::vector<fs::path> retain_but(const fs::path& directory, std::int64_t keep, const fs::path& sound,
                                 std::optional<std::int64_t> pinned = {}) {
  std::vector<fs::path> deleted;
  std::int64_t left = std::max<std::int64_t>(keep, 1) - 1;  // beside `sound`
  for (const CheckpointInfo& info : list_checkpoints(directory)) {
    if (info.path.filename() == sound.filename() || info.step == pinned) continue;
    if (left-- > 0) continue;
    const UniqueFd handle(::open(info.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!handle || (::flock(handle.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)) continue;
    // Moved away first: a half-deleted checkpoint must not be found under a checkpoint's name.
    const fs::path trash = trash_name(info.path);
    if (::rename(info.path.c_str(), trash.c_str()) != 0) continue;
    std::error_code ignored;
    fs::remove_all(trash, ignored);
    deleted.push_back(info.path);
  }
  return deleted;
}

// One collective save. Each phase remembers what went wrong and continues to the next barrier: no rank waits forever.
class Save {
 public:
  Save(const CheckpointContents& contents, const SaveOptions& options)
      : contents_(contents),
        options_(options),
        target_(options.directory / step_folder_name(contents.step)),
        temp_(options.directory / temp_name(target_, options.run_id)) {}

  SaveResult run() {
    const Stopwatch watch;
    attempt([&] { prepare(); });
    barrier();
    attempt([&] { write_part(); });
    barrier();
    attempt([&] { publish_all(); });
    barrier();
    attempt([&] { confirm(); });
    if (error_) {
      if (options_.rank == 0 && lock_) discard(temp_);
      std::rethrow_exception(error_);
    }
    return {target_, bytes_, watch.seconds()};
  }

 private:
  template <class Phase>
  void attempt(Phase phase) {
    if (error_) return;
    try {
      phase();
    } catch (const fs::filesystem_error& error) {
      error_ = std::make_exception_ptr(
          environment_error(error.code().message(), "check the disk and its permissions", {error.path1().string()}));
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  void barrier() {
    if (options_.world == 1) return;
    try {
      options_.barrier();
    } catch (...) {
      // Our own failure is nearer to the cause than the broken barrier that it may have led to.
      if (error_) std::rethrow_exception(error_);
      throw;
    }
  }

  void prepare() {
    if (options_.rank != 0) return;
    make_folders(options_.directory);
    lock_ = lock_directory(options_.directory);
    remove_junk(options_.directory);
    if (!fs::create_directory(temp_)) {
      throw environment_error("what an earlier save left behind cannot be removed", "delete it", {temp_.string()});
    }
  }

  void write_part() {
    temp_inode_ = inode_of(temp_);
    if (temp_inode_ == 0) {
      throw environment_error("rank 0 could not begin the checkpoint, or this rank does not see its folder",
                              "see rank 0's message; checkpoint.directory must be shared by all ranks",
                              {temp_.string()});
    }
    const fs::path part = temp_ / (kPartPrefix + rank_file_stem(options_.rank) + ".json");
    try {
      const FileEntries entries = write_files();
      write_durable_file(part, json{{"files", to_json(entries)}}.dump());
    } catch (const std::exception& error) {
      try {
        write_durable_file(part, json{{"error", error.what()}}.dump(-1, ' ', false, json::error_handler_t::replace));
      } catch (const UserError&) {
        // The disk is full; the missing part tells rank 0.
      }
      throw;
    }
  }

  FileEntries write_files() {
    FileEntries entries;
    const auto tensors = [&](const std::string& name, const TensorMap& map) {
      entries[name] = whole_tensors(write_safetensors(temp_ / name, map), map);
    };
    if (options_.rank == 0) {
      tensors(kModelFile, contents_.model);
      tensors(kOptimizerFile, contents_.optimizer);
    }
    const std::string stem = rank_file_stem(options_.rank);
    entries[stem + ".json"].digest = write_durable_file(temp_ / (stem + ".json"), contents_.rank_state.dump());
    if (!contents_.rank_tensors.empty()) tensors(stem + ".safetensors", contents_.rank_tensors);
    for (const auto& [name, entry] : entries) bytes_ += entry.digest.bytes;
    return entries;
  }

  void publish_all() {
    if (options_.rank != 0) return;
    FileEntries entries;
    for (int rank = 0; rank < options_.world; ++rank) entries.merge(collect_part(rank));
    const json manifest = {
        {"schema", "lockstep.checkpoint/1"}, {"step", contents_.step},           {"world", options_.world},
        {"created_at", unix_seconds()},      {"job", contents_.job_yaml},        {"loader", contents_.loader},
        {"extra", contents_.extra},          {"block_bytes", kDigestBlockBytes}, {"files", to_json(entries)}};
    if (options_.before_publish) options_.before_publish();
    write_durable_file(temp_ / kManifestName, seal_manifest(manifest));
    sync_folder(temp_);
    publish_folder(temp_, target_);
  }

  // What rank `rank` wrote, by its own account; its note is removed.
  FileEntries collect_part(int rank) {
    const fs::path part = temp_ / (kPartPrefix + rank_file_stem(rank) + ".json");
    const fs::path shown = options_.directory;
    if (!fs::exists(part)) {
      throw environment_error("rank " + std::to_string(rank) + " did not finish its part of the checkpoint",
                              "see that rank's message; the previous checkpoint is untouched", {shown.string()});
    }
    const json said = parse_json(read_file(part), part);
    if (said.contains("error")) {
      throw environment_error("rank " + std::to_string(rank) + " could not save: " + said["error"].get<std::string>(),
                              "the previous checkpoint is untouched", {shown.string()});
    }
    FileEntries entries = parse_entries(said.at("files"), part);
    fs::remove(part);
    return entries;
  }

  void confirm() {
    if (options_.rank != 0 && inode_of(target_) != temp_inode_) {
      throw environment_error("the checkpoint was not published", "see rank 0's message; the previous one is untouched",
                              {target_.string()});
    }
    if (options_.rank == 0) retain_but(options_.directory, options_.keep, target_, options_.pinned_step);
  }

  const CheckpointContents& contents_;
  const SaveOptions& options_;
  const fs::path target_;
  const fs::path temp_;
  UniqueFd lock_;
  ino_t temp_inode_ = 0;
  std::uint64_t bytes_ = 0;
  std::exception_ptr error_;
};

}  // namespace

SaveResult save_checkpoint(const CheckpointContents& contents, const SaveOptions& options) {
  LOCKSTEP_ASSERT(contents.step >= 0, "steps count from 0");
  LOCKSTEP_ASSERT(options.rank >= 0 && options.rank < options.world, "rank must be below world");
  LOCKSTEP_ASSERT(options.world == 1 || options.barrier, "several ranks need a barrier");
  if (options.directory.empty()) throw bad_input("checkpoint.directory is empty", "name a folder");
  LOCKSTEP_ASSERT(options.run_id.find('/') == std::string::npos, "a run id is one part of a path");
  return Save(contents, options).run();
}

std::vector<fs::path> retain(const fs::path& directory, std::int64_t keep) {
  if (!fs::is_directory(directory)) return {};
  const UniqueFd lock = lock_directory(directory);
  const auto newest = find_latest(directory);
  return newest ? retain_but(directory, keep, newest->path) : std::vector<fs::path>{};
}

}  // namespace lockstep::checkpoint
