#include "lockstep/checkpoint/hf_folder.h"

#include <optional>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/hf_files.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

// The index of the largest released models has some hundred thousand tensors.
constexpr std::uint64_t kMaxIndexBytes = 64u << 20;

std::string quoted(const std::string& tensor) { return "'" + printable(tensor, 200) + "'"; }

UserError pickled(const fs::path& file) {
  return bad_input("weights of this kind are pickled: reading them can run any code, so they are not read here",
                   "load the folder with transformers, where you trust it, and call save_pretrained, which writes "
                   "model.safetensors",
                   {printable_path(file)});
}

bool is_pickle_name(const fs::path& file) {
  const std::string end = file.extension().string();
  return end == ".bin" || end == ".pt" || end == ".pth" || end == ".ckpt" || end == ".pkl" ||
         file.filename() == "pytorch_model.bin.index.json";
}

[[noreturn]] void refuse_folder_without_weights(const fs::path& folder) {
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (file_of_folder(folder, name)) throw pickled(folder / name);
  }
  throw environment_error(std::string("there is neither ") + kHfWeights + " nor " + kHfIndex,
                          "give the folder of a model in the layout of Hugging Face", {printable_path(folder)});
}

// Messages name the file as the folder calls it; what is opened is where its link leads.
std::optional<SafetensorsFile> open_in_folder(const fs::path& folder, const std::string& name) {
  const auto file = file_of_folder(folder, name);
  if (!file) return std::nullopt;
  return SafetensorsFile::open(open_for_reading(*file), folder / name);
}

void check_shard(const SafetensorsFile& shard, const WeightMap& shard_of) {
  const std::string name = shard.path().filename().string();
  for (const auto& [tensor, entry] : shard.entries()) {
    const auto listed = shard_of.find(tensor);
    if (listed != shard_of.end() && listed->second == name) continue;
    throw bad_input("it holds tensor " + quoted(tensor) + ", which the index " +
                        (listed == shard_of.end() ? "does not list" : "says is in " + listed->second),
                    "download the index and its shards again, together", {printable_path(shard.path())});
  }
}

}  // namespace

WeightFiles WeightFiles::open(const fs::path& path) {
  WeightFiles weights(path);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    throw environment_error("there are no such weights", "check the path", {printable_path(path)});
  }
  if (fs::is_directory(path, ignored)) {
    if (auto whole = open_in_folder(path, kHfWeights)) {
      weights.add_file(std::move(*whole));
    } else if (const auto index = file_of_folder(path, kHfIndex)) {
      weights.add_shards(path, parse_weight_index(read_file(*index, kMaxIndexBytes), path / kHfIndex));
    } else {
      refuse_folder_without_weights(path);
    }
  } else if (is_pickle_name(path)) {
    throw pickled(path);
  } else if (path.extension() == ".json") {
    const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
    weights.add_shards(folder, parse_weight_index(read_file(path, kMaxIndexBytes), path));
  } else {
    weights.add_file(SafetensorsFile::open(path));
  }
  return weights;
}

void WeightFiles::add_file(SafetensorsFile file) {
  for (const auto& [name, entry] : file.entries()) file_of_[name] = files_.size();
  files_.push_back(std::move(file));
}

void WeightFiles::add_shards(const fs::path& folder, const WeightMap& shard_of) {
  std::set<std::string> opened;
  for (const auto& [tensor, shard] : shard_of) {
    if (!opened.insert(shard).second) continue;
    auto file = open_in_folder(folder, shard);
    if (!file) {
      throw bad_input("the shard of tensor " + quoted(tensor) + " is not there", "download the folder again",
                      {printable_path(folder / shard)});
    }
    check_shard(*file, shard_of);
    add_file(std::move(*file));
  }
  for (const auto& [tensor, shard] : shard_of) {
    if (contains(tensor)) continue;
    throw bad_input("it lacks tensor " + quoted(tensor) + ", which the index says is there",
                    "download the index and its shards again, together", {printable_path(folder / shard)});
  }
}

std::vector<std::string> WeightFiles::names() const {
  std::vector<std::string> names;
  names.reserve(file_of_.size());
  for (const auto& [name, file] : file_of_) names.push_back(name);
  return names;
}

const SafetensorsFile& WeightFiles::file_with(const std::string& name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) {
    throw bad_input("there is no tensor " + quoted(name), "check that the weights belong to this model",
                    {printable_path(path_)});
  }
  return files_[found->second];
}

const TensorEntry& WeightFiles::entry(const std::string& name) const { return file_with(name).entry(name); }

void WeightFiles::read_range(const std::string& name, std::int64_t first_element, torch::Tensor out) const {
  file_with(name).read_range(name, first_element, std::move(out));
}

}  // namespace lockstep::checkpoint
