// manifest.json: what a checkpoint consists of (docs/reference/checkpoint.md), and the checks of files against it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"

namespace lockstep::checkpoint {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";

// What format 1 says of a tensor: always whole (shape == global_shape, offsets 0).
struct TensorSlice {
  std::string dtype;  // safetensors name
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> global_shape;
  std::vector<std::int64_t> offsets;  // of the slice in the global tensor, one per dim

  bool is_whole() const;
};

struct FileEntry {
  FileDigest digest;
  std::map<std::string, TensorSlice> tensors = {};  // format 1, safetensors files only
};
using FileEntries = std::map<std::string, FileEntry>;  // by name inside the checkpoint

nlohmann::json to_json(const FileEntries& entries);
// Throws UserError (bad input) for names that leave the folder, sizes and block lists that do not fit each other.
FileEntries parse_entries(const nlohmann::json& json, const std::filesystem::path& place);

// As many blocks as the size needs; throws UserError (bad input) otherwise.
void check_blocks(const FileDigest& digest, const std::filesystem::path& place);

// The text of a manifest with its own CRC-32C at the end, and back. `path` is for messages. Throws UserError (bad
// input) when the checksum, the JSON or the schema is wrong, and when it was written by a newer version.
std::string seal_manifest(const nlohmann::json& manifest);
nlohmann::json unseal_manifest(const std::string& text, const std::filesystem::path& path);
CheckpointInfo describe(const nlohmann::json& manifest, const std::filesystem::path& checkpoint);

// Parses JSON from a file that may be hostile: bounded nesting, and UserError (bad input) instead of the parser's
// exception.
nlohmann::json parse_json(const std::string& text, const std::filesystem::path& path);

// Compares a file of the open folder `folder` with its entry, reading every byte.
std::vector<Damage> verify_file(const UniqueFd& folder, const std::filesystem::path& checkpoint,
                                const std::string& name, const FileEntry& entry);

// A checkpoint's folder, locked against deletion while this lives, and what its manifest says.
struct OpenFolder {
  UniqueFd folder;
  nlohmann::json manifest;
  CheckpointInfo info;
  FileEntries entries;
};
// Throws UserError: environment when it is not there, bad input when the manifest is damaged or from a newer version.
OpenFolder open_folder(const std::filesystem::path& checkpoint);

std::string step_folder_name(std::int64_t step);  // "step-00000123"
std::string rank_file_stem(int rank);             // "rank-00003"
// The step in a folder name, or -1.
std::int64_t parse_step_folder(const std::string& name);

}  // namespace lockstep::checkpoint
