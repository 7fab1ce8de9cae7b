// model.safetensors.index.json: which shard holds which tensor.
//
//   {"metadata": {"total_size": bytes of all tensors}, "weight_map": {"tensor": "model-00001-of-00002.safetensors"}}
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace lockstep::checkpoint {

// By tensor: the name of its file. Names of files are plain (no path) and end in .safetensors.
using WeightMap = std::map<std::string, std::string>;

// Treats the text as hostile: parsed without building a document; a tensor that is listed twice, a value that is not
// the plain name of a safetensors file and a map without tensors are UserErrors (bad input) naming `file` and tensor.
// `metadata` and unknown keys are passed over: the sizes that count are those of the shards.
WeightMap parse_weight_index(const std::string& text, const std::filesystem::path& file);

std::string weight_index_text(const WeightMap& shard_of, std::uint64_t total_bytes);

}  // namespace lockstep::checkpoint
