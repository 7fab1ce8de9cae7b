// Finding and checking checkpoints; every byte of them.
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
#include "lockstep/checkpoint/part_files.h"

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

// Every rank's index, and that every element of every tensor is there once.
std::vector<Damage> verify_pieces(const OpenFolder& open) {
  std::vector<Damage> damage;
  struct Held {
    std::vector<std::int64_t> sizes;
    std::int64_t elements = 0;
  };
  std::map<std::pair<TensorKind, std::string>, Held> held;
  for (int rank = 0; rank < open.info.world; ++rank) {
    const std::string name = rank_file_stem(rank) + ".json", data = rank_file_stem(rank) + ".safetensors";
    if (!open.entries.count(name) || !open.entries.count(data)) {
      damage.push_back({kManifestName, 0, 0, "lists no part of rank " + std::to_string(rank)});
      continue;
    }
    const std::filesystem::path path = open.info.path / name;
    const PartIndex index = parse_part_index(read_text(open.folder, path), path);
    if (!(index.file.blocks == open.entries.at(data).digest.blocks)) {
      damage.push_back({name, 0, 0, "has other checksums of " + data + " than the manifest"});
    }
    for (const auto& [key, piece] : index.pieces) {
      if (piece.kind == TensorKind::kRank) continue;
      Held& tensor = held.try_emplace(key, Held{piece.sizes, 0}).first->second;
      if (tensor.sizes != piece.sizes) damage.push_back({name, 0, 0, "gives '" + piece.name + "' other sizes"});
      tensor.elements += elements_of(piece.series);
    }
  }
  for (const auto& [key, tensor] : held) {
    const std::int64_t elements = TensorSource::Facts{torch::kFloat32, tensor.sizes}.elements();
    if (tensor.elements == elements) continue;
    damage.push_back({kManifestName, 0, 0,
                      "belongs to pieces that hold " + std::to_string(tensor.elements) + " of the " +
                          std::to_string(elements) + " elements of '" + key.second + "'"});
  }
  return damage;
}

}  // namespace

OpenFolder open_folder(const std::filesystem::path& checkpoint) {
  OpenFolder open;
  open.folder = open_and_lock(checkpoint);
  open.manifest = read_manifest(open.folder, checkpoint);
  open.info = describe(open.manifest, checkpoint);
  open.entries = parse_entries(open.manifest.at("files"), checkpoint / kManifestName);
  return open;
}

std::vector<CheckpointInfo> list_checkpoints(const std::filesystem::path& directory) {
  std::vector<CheckpointInfo> infos;
  for (const auto& path : step_folders(directory)) {
    try {
      infos.push_back(open_folder(path).info);
    } catch (const UserError&) {
      // Not a checkpoint (any more); verify_checkpoint() says why.
    }
  }
  return infos;
}

std::vector<Damage> verify_checkpoint(const std::filesystem::path& checkpoint, CheckpointInfo* info) {
  try {
    const OpenFolder open = open_folder(checkpoint);
    const std::int64_t named = parse_step_folder(checkpoint.filename().string());
    if (named >= 0 && named != open.info.step) {
      return {{kManifestName, 0, 0, "says step " + std::to_string(open.info.step) + ", unlike the folder's name"}};
    }
    std::vector<Damage> damage;
    for (const auto& [name, entry] : open.entries) {
      auto found = verify_file(open.folder, checkpoint, name, entry);
      damage.insert(damage.end(), found.begin(), found.end());
    }
    if (damage.empty() && open.info.format > 1) damage = verify_pieces(open);
    if (info) *info = open.info;
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

}  // namespace lockstep::checkpoint
