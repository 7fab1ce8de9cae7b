#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/manifest.h"

namespace lockstep::checkpoint {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{1} << 30;

// Opens the folder and locks it against deletion. The lock may come a moment after retention has moved the folder away;
// that shows in the name pointing to nothing or to another folder.
UniqueFd open_and_lock(const std::filesystem::path& checkpoint) {
  UniqueFd folder(::open(checkpoint.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) {
    throw environment_error(std::string("cannot open the checkpoint: ") + std::strerror(errno), "check the path",
                            {checkpoint.string()});
  }
  // Only deletion takes the exclusive lock, for a moment, on folders that it moves away first: no need to wait. File
  // systems without locks give another error and no protection.
  const bool being_deleted = ::flock(folder.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  struct stat opened {
  }, named{};
  const bool same = ::fstat(folder.get(), &opened) == 0 && ::stat(checkpoint.c_str(), &named) == 0 &&
                    opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
  if (being_deleted || !same) {
    throw environment_error("the checkpoint was replaced or deleted just now", "try again", {checkpoint.string()});
  }
  return folder;
}

std::string read_text(const UniqueFd& folder, const std::filesystem::path& path) {
  const UniqueFd file = open_for_reading(path, &folder);
  const std::uint64_t size = file_size(file, path);
  if (size > kMaxManifestBytes)
    throw bad_input("larger than 1 GiB", "this is not part of a checkpoint", {path.string()});
  std::string text(size, '\0');
  read_exactly(file, path, text.data(), size, 0);
  return text;
}

json read_manifest(const UniqueFd& folder, const std::filesystem::path& checkpoint) {
  const std::filesystem::path path = checkpoint / kManifestName;
  return unseal_manifest(read_text(folder, path), path);
}

void require_sound(const UniqueFd& folder, const std::filesystem::path& checkpoint, const std::string& name,
                   const FileEntry& entry) {
  const std::vector<Damage> damage = verify_file(folder, checkpoint, name, entry);
  if (!damage.empty()) {
    throw bad_input("the checkpoint is damaged: " + damage.front().to_string(), "resume from an older checkpoint",
                    {checkpoint.string()});
  }
}

// All tensors of one file, checked against the manifest.
TensorMap read_tensors(const UniqueFd& folder, const std::filesystem::path& checkpoint, const std::string& name,
                       const FileEntries& entries) {
  const auto found = entries.find(name);
  if (found == entries.end()) {
    throw bad_input("the manifest lists no " + name, "resume from an older checkpoint", {checkpoint.string()});
  }
  require_sound(folder, checkpoint, name, found->second);
  const SafetensorsFile file = SafetensorsFile::open(open_for_reading(checkpoint / name, &folder), checkpoint / name);
  bool fits = file.entries().size() == found->second.tensors.size();
  for (const auto& [tensor, slice] : found->second.tensors) {
    if (!slice.is_whole()) {
      throw bad_input("tensor '" + tensor + "' is stored in slices", "use the version of lockstep that wrote it",
                      {(checkpoint / name).string()});
    }
    fits = fits && file.contains(tensor) && file.entry(tensor).shape == slice.shape &&
           safetensors_dtype(file.entry(tensor).dtype) == slice.dtype;
  }
  if (!fits) {
    throw bad_input("the tensors differ from those in the manifest", "resume from an older checkpoint",
                    {(checkpoint / name).string()});
  }
  return file.read_all();
}

std::vector<std::filesystem::path> step_folders(const std::filesystem::path& directory) {
  std::vector<std::pair<std::int64_t, std::filesystem::path>> found;
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator(directory, error); !error && it != std::filesystem::end(it);
       it.increment(error)) {
    const std::int64_t step = parse_step_folder(it->path().filename().string());
    if (step >= 0) found.emplace_back(step, it->path());
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::filesystem::path> paths;
  for (auto& [step, path] : found) paths.push_back(std::move(path));
  return paths;
}

}  // namespace

std::vector<CheckpointInfo> list_checkpoints(const std::filesystem::path& directory) {
  std::vector<CheckpointInfo> infos;
  for (const auto& path : step_folders(directory)) {
    try {
      infos.push_back(CheckpointReader::open(path).info());
    } catch (const UserError&) {
      // Not a checkpoint (any more); verify_checkpoint() says why.
    }
  }
  return infos;
}

std::vector<Damage> verify_checkpoint(const std::filesystem::path& checkpoint, CheckpointInfo* info) {
  try {
    const UniqueFd folder = open_and_lock(checkpoint);
    const json manifest = read_manifest(folder, checkpoint);
    const CheckpointInfo said = describe(manifest, checkpoint);
    if (parse_step_folder(checkpoint.filename().string()) != said.step) {
      return {{kManifestName, 0, 0, "says step " + std::to_string(said.step) + ", unlike the folder's name"}};
    }
    std::vector<Damage> damage;
    for (const auto& [name, entry] : parse_entries(manifest.at("files"), checkpoint / kManifestName)) {
      auto found = verify_file(folder, checkpoint, name, entry);
      damage.insert(damage.end(), found.begin(), found.end());
    }
    if (info) *info = said;
    return damage;
  } catch (const UserError& error) {
    return {{kManifestName, 0, 0, error.what()}};
  }
}

std::optional<CheckpointInfo> find_latest(const std::filesystem::path& directory, const Warn& warn) {
  for (const auto& path : step_folders(directory)) {
    CheckpointInfo info;
    const std::vector<Damage> damage = verify_checkpoint(path, &info);
    if (damage.empty()) return info;
    if (warn) warn("checkpoint " + path.string() + " is passed over: " + damage.front().to_string());
  }
  return std::nullopt;
}

CheckpointReader CheckpointReader::open(const std::filesystem::path& checkpoint) {
  CheckpointReader reader;
  reader.lock_ = open_and_lock(checkpoint);
  reader.manifest_ = read_manifest(reader.lock_, checkpoint);
  reader.info_ = describe(reader.manifest_, checkpoint);
  return reader;
}

CheckpointContents CheckpointReader::read(int rank) const {
  const std::filesystem::path& path = info_.path;
  const FileEntries entries = parse_entries(manifest_.at("files"), path / kManifestName);
  CheckpointContents contents;
  contents.step = info_.step;
  try {
    contents.job_yaml = manifest_.at("job").get<std::string>();
    contents.loader = manifest_.at("loader");
    contents.extra = manifest_.at("extra");
  } catch (const json::exception&) {
    throw bad_input("job, loader or extra is missing", "resume from an older checkpoint",
                    {(path / kManifestName).string()});
  }
  contents.model = read_tensors(lock_, path, kModelFile, entries);
  contents.optimizer = read_tensors(lock_, path, kOptimizerFile, entries);
  const std::string state = rank_file_stem(rank) + ".json", tensors = rank_file_stem(rank) + ".safetensors";
  if (const auto found = entries.find(state); found != entries.end()) {
    require_sound(lock_, path, state, found->second);
    contents.rank_state = parse_json(read_text(lock_, path / state), path / state);
  }
  if (entries.count(tensors)) contents.rank_tensors = read_tensors(lock_, path, tensors, entries);
  return contents;
}

}  // namespace lockstep::checkpoint
