#include "lockstep/checkpoint/hf_folder_writer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/checkpoint/hf_files.h"
#include "lockstep/checkpoint/safetensors.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWaitingFile = "waiting";

fs::path without_trailing_slash(const fs::path& folder) {
  const fs::path path = fs::absolute(folder).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

void refuse_unless_free(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(folder, ignored))) return;
  if (fs::is_directory(folder, ignored) && fs::is_empty(folder, ignored)) return;
  throw bad_input("it is there already and not an empty folder", "choose another folder or remove this one",
                  {printable_path(folder)});
}

fs::path make_hidden_folder_beside(const fs::path& folder) {
  make_folders(folder.parent_path());
  for (int attempt = 0;; ++attempt) {
    fs::path hidden =
        folder.parent_path() / fmt::format(".{}.tmp-{}-{}", folder.filename().string(), ::getpid(), attempt);
    std::error_code error;
    if (fs::create_directory(hidden, error)) return hidden;
    if (error) {
      throw environment_error("cannot create the folder: " + error.message(), "check the path and the permissions",
                              {printable_path(hidden)});
    }
  }
}

void copy_bytes(const fs::path& path, const UniqueFd& from, std::uint64_t offset, std::uint64_t bytes,
                DurableFile& to) {
  std::vector<char> buffer(std::min<std::uint64_t>(bytes, 1u << 20));
  while (bytes > 0) {
    const std::uint64_t piece = std::min<std::uint64_t>(bytes, buffer.size());
    read_exactly(from, path, buffer.data(), piece, offset);
    to.write(buffer.data(), piece);
    offset += piece;
    bytes -= piece;
  }
}

// As transformers spells dtypes in config.json; nothing for those that no model is loaded in.
std::string config_dtype(torch::ScalarType dtype) {
  if (dtype == torch::kFloat64) return "float64";
  if (dtype == torch::kFloat32) return "float32";
  if (dtype == torch::kBFloat16) return "bfloat16";
  return dtype == torch::kFloat16 ? "float16" : "";
}

std::string unnamed_shard(std::size_t shard) { return fmt::format("shard-{}", shard); }

}  // namespace

WeightFolderWriter::WeightFolderWriter(const fs::path& folder, nlohmann::json config, WeightFolderOptions options)
    : folder_(without_trailing_slash(folder)), config_(std::move(config)), options_(std::move(options)) {
  refuse_unless_free(folder_);
  temporary_ = make_hidden_folder_beside(folder_);
}

WeightFolderWriter::~WeightFolderWriter() {
  std::error_code ignored;
  if (!finished_) fs::remove_all(temporary_, ignored);
}

void WeightFolderWriter::add(const std::string& name, const torch::Tensor& tensor) {
  LOCKSTEP_ASSERT(!finished_ && tensor.defined(), "tensor '" + name + "' is undefined or comes after finish()");
  LOCKSTEP_ASSERT(names_.insert(name).second, "tensor '" + name + "' is written twice");
  const std::string dtype = safetensors_dtype(tensor.scalar_type());
  const auto bytes = static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size();
  if (!waiting_.empty() && waiting_bytes_ + bytes > options_.max_shard_bytes) close_shard();
  if (!waiting_file_) waiting_file_ = std::make_unique<DurableFile>(temporary(kWaitingFile));
  const torch::Tensor plain = tensor.detach().to(torch::kCPU).contiguous();
  if (bytes > 0) waiting_file_->write(plain.data_ptr(), bytes);
  waiting_.push_back(
      {{name, dtype, tensor.sizes().vec(), waiting_bytes_, waiting_bytes_ + bytes}, tensor.element_size()});
  waiting_bytes_ += bytes;
  total_bytes_ += bytes;
  if (tensor.is_floating_point()) floating_dtypes_.insert(tensor.scalar_type());
}

void WeightFolderWriter::close_shard() {
  // Widest elements first: with no holes allowed, this keeps every tensor aligned to its element size.
  std::stable_sort(waiting_.begin(), waiting_.end(),
                   [](const Waiting& a, const Waiting& b) { return a.element_bytes > b.element_bytes; });
  SafetensorsHeader header{{}, {{"format", "pt"}}};  // transformers asks for the format
  std::vector<std::string> names;
  std::uint64_t offset = 0;
  for (const Waiting& waiting : waiting_) {
    const std::uint64_t bytes = waiting.tensor.end - waiting.tensor.begin;
    HeaderTensor tensor = waiting.tensor;
    tensor.begin = offset;
    tensor.end = offset += bytes;
    names.push_back(tensor.name);
    header.tensors.push_back(std::move(tensor));
  }
  const std::string front = header_bytes(header);
  waiting_file_.reset();  // closed; it is read again below and need not be durable
  const UniqueFd from = open_for_reading(temporary(kWaitingFile));
  DurableFile shard(temporary(unnamed_shard(shards_.size())));
  shard.write(front.data(), front.size());
  for (const Waiting& waiting : waiting_) {
    const HeaderTensor& tensor = waiting.tensor;
    copy_bytes(temporary(kWaitingFile), from, tensor.begin, tensor.end - tensor.begin, shard);
  }
  shard.finish();
  fs::remove(temporary(kWaitingFile));
  shards_.push_back(std::move(names));
  waiting_.clear();
  waiting_bytes_ = 0;
}

// How many there are is known only now, and their names say it.
void WeightFolderWriter::name_shards() {
  if (shards_.size() == 1) {
    publish(temporary(unnamed_shard(0)), temporary(kHfWeights));
    return;
  }
  WeightMap shard_of;
  for (std::size_t shard = 0; shard < shards_.size(); ++shard) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards_.size());
    publish(temporary(unnamed_shard(shard)), temporary(name));
    for (const std::string& tensor : shards_[shard]) shard_of[tensor] = name;
  }
  write_durable_file(temporary(kHfIndex), weight_index_text(shard_of, total_bytes_));
}

void WeightFolderWriter::copy_tokenizer() const {
  if (options_.tokenizer_source.empty()) return;
  const fs::path given = options_.tokenizer_source;
  const bool is_file = fs::is_regular_file(given);
  for (const std::string& name : hf_tokenizer_files()) {
    if (is_file && given.filename() != name) continue;  // what lies beside a file need not be its
    const auto source = file_of_folder(is_file ? given.parent_path() : given, name);
    if (!source) continue;
    const UniqueFd from = open_for_reading(*source);
    DurableFile to(temporary(name));
    copy_bytes(*source, from, 0, file_size(from, *source), to);
    to.finish();
  }
}

void WeightFolderWriter::finish() {
  LOCKSTEP_ASSERT(!finished_ && !names_.empty(), "finish() comes once, after the tensors");
  if (!waiting_.empty()) close_shard();
  name_shards();
  if (floating_dtypes_.size() == 1 && !config_.contains("dtype")) {
    const std::string dtype = config_dtype(*floating_dtypes_.begin());
    if (!dtype.empty()) config_["dtype"] = dtype;
  }
  write_durable_file(temporary(kHfConfig), config_.dump(2) + "\n");
  copy_tokenizer();
  sync_folder(temporary_);
  publish(temporary_, folder_);
  finished_ = true;
}

}  // namespace lockstep::checkpoint
