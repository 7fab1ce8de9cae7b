// Weights as Hugging Face publishes them, by name and piece by piece, so that a rank reads its own slices only.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/checkpoint/hf_index.h"
#include "lockstep/checkpoint/safetensors.h"

namespace lockstep::checkpoint {

// The open files of one model. Movable; reading is const and safe from several threads.
class WeightFiles {
 public:
  // `path` is a .safetensors file, an index file, or a folder with model.safetensors or with
  // model.safetensors.index.json and its shards (the first of the two that is there, as transformers does).
  // Every header is checked here, no data is read. Everything is hostile: names that are paths, links out of the
  // folder, shards that are missing, an index that does not match its shards tensor by tensor are UserErrors (bad
  // input) naming file and tensor. Pickled weights (pytorch_model.bin) are refused with the way to convert them.
  static WeightFiles open(const std::filesystem::path& path);

  // As given to open().
  const std::filesystem::path& path() const { return path_; }
  // Sorted.
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return file_of_.count(name) != 0; }
  // Throws UserError (bad input) when there is no such tensor, as does read_range.
  const TensorEntry& entry(const std::string& name) const;

  // Elements [first_element, first_element + out.numel()) of the row-major tensor into `out`: one-dimensional and
  // contiguous, any device, converted to its dtype.
  void read_range(const std::string& name, std::int64_t first_element, torch::Tensor out) const;

 private:
  explicit WeightFiles(std::filesystem::path path) : path_(std::move(path)) {}
  void add_file(SafetensorsFile file);
  void add_shards(const std::filesystem::path& folder, const WeightMap& shard_of);
  const SafetensorsFile& file_with(const std::string& name) const;

  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::size_t> file_of_;  // by tensor: index into files_
};

}  // namespace lockstep::checkpoint
