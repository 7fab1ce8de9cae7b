// A folder that transformers loads: config.json, weights as safetensors (in shards when they are large), tokenizer.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "lockstep/checkpoint/durable_file.h"
#include "lockstep/checkpoint/hf_index.h"
#include "lockstep/checkpoint/safetensors_header.h"

namespace lockstep::checkpoint {

struct WeightFolderOptions {
  // Beyond it the weights become model-00001-of-000NN.safetensors and an index. A larger tensor has its own shard.
  std::uint64_t max_shard_bytes = 5'000'000'000;
  // A folder whose tokenizer files (hf_files.h) are copied, those that are there; empty: none.
  std::filesystem::path tokenizer_source{};
};

// Writes into a hidden folder beside the target and renames it in finish(): the target is whole or not there. Tensors
// come one at a time, from one thread, and none is kept in memory; the disk holds up to one shard twice meanwhile.
// All methods throw UserError (environment) for a full disk or a folder that cannot be written.
class WeightFolderWriter {
 public:
  // `config` becomes config.json (spec::to_hf_config); a `dtype` is added when all floating tensors share one.
  // Throws UserError (bad input) when `folder` is there already and not empty.
  WeightFolderWriter(const std::filesystem::path& folder, nlohmann::json config, WeightFolderOptions options = {});
  // Without finish() nothing is left behind.
  ~WeightFolderWriter();
  WeightFolderWriter(const WeightFolderWriter&) = delete;
  WeightFolderWriter& operator=(const WeightFolderWriter&) = delete;

  // Any device and layout. Names are unique.
  void add(const std::string& name, const torch::Tensor& tensor);
  // After at least one add(); on return everything is durable under the final name. At most once.
  void finish();

 private:
  // Where the bytes of a tensor wait until the shard's header, which comes first, is known.
  struct Waiting {
    HeaderTensor tensor;  // begin and end: place in the waiting file
    std::int64_t element_bytes = 0;
  };

  std::filesystem::path temporary(const std::string& name) const { return temporary_ / name; }
  void close_shard();
  void name_shards();
  void copy_tokenizer() const;

  std::filesystem::path folder_;
  std::filesystem::path temporary_;
  nlohmann::json config_;
  WeightFolderOptions options_;

  std::unique_ptr<DurableFile> waiting_file_;
  std::vector<Waiting> waiting_;
  std::uint64_t waiting_bytes_ = 0;

  std::vector<std::vector<std::string>> shards_;  // names of tensors
  std::uint64_t total_bytes_ = 0;
  std::set<std::string> names_;
  std::set<torch::ScalarType> floating_dtypes_;
  bool finished_ = false;
};

}  // namespace lockstep::checkpoint
