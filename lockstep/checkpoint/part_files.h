// One rank's two files of a checkpoint: `rank-00003.safetensors`, its pieces back to back, and the index
// `rank-00003.json`, which says what they are:
//
//   {"schema": "lockstep.checkpoint_part/2", "rank": 3, "step": 120, "state": {...},
//    "file": {"bytes": ..., "blocks": [...]},
//    "tensors": {"model": {name: {"dtype", "sizes", "offset", "series": [[first, count, stride, repeat], ...]}}, ...}}
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "lockstep/checkpoint/durable_file.h"
#include "lockstep/checkpoint/host_image.h"
#include "lockstep/checkpoint/manifest.h"

namespace lockstep::checkpoint {

// Writes both files, durable on return but for their names in `folder`. Stops with UserError (environment) once
// `abandoned` is set. Returns the bytes written.
std::uint64_t write_part_files(const std::filesystem::path& folder, int rank, const HostImage& image,
                               const CheckpointFacts& facts, const FileLayer& files,
                               const std::atomic<bool>& abandoned);

struct PartIndex {
  std::int64_t step = 0;
  nlohmann::json state = nlohmann::json::object();
  FileDigest file;
  std::map<std::pair<TensorKind, std::string>, StoredPiece> pieces;
};

// Treats the text as hostile: series inside their tensors, bytes inside the file. Throws UserError (bad input).
PartIndex parse_part_index(const std::string& text, const std::filesystem::path& path);

}  // namespace lockstep::checkpoint
