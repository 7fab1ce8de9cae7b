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

// Which part of a tensor a file holds. Data-parallel ranks hold whole tensors (shape == global_shape, offsets 0); the
// fields are there so that a reader can put slices together for another number of ranks.
struct TensorSlice {
  std::string dtype;  // safetensors name
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> global_shape;
  std::vector<std::int64_t> offsets;  // of the slice in the global tensor, one per dim

  bool is_whole() const;
};

struct FileEntry {
  FileDigest digest;
  std::map<std::string, TensorSlice> tensors;  // safetensors files only
};
using FileEntries = std::map<std::string, FileEntry>;  // by name inside the checkpoint

// Entries of a safetensors file that holds `tensors` whole.
FileEntry whole_tensors(FileDigest digest, const TensorMap& tensors);

nlohmann::json to_json(const FileEntries& entries);
// Throws UserError (bad input) for names that leave the folder, sizes and block lists that do not fit each other.
FileEntries parse_entries(const nlohmann::json& json, const std::filesystem::path& place);

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

std::string step_folder_name(std::int64_t step);  // "step-00000123"
std::string rank_file_stem(int rank);             // "rank-00003"
// The step in a folder name, or -1.
std::int64_t parse_step_folder(const std::string& name);

}  // namespace lockstep::checkpoint
