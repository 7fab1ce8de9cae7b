#include "lockstep/data/tensor_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/data/mapped_file.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;
using checkpoint::SafetensorsFile;
using checkpoint::TensorEntry;

constexpr const char* kFix = "write it with safetensors.torch.save_file({name: tensor, ...}, FILE)";

std::vector<fs::path> files_at(const fs::path& path) {
  std::vector<fs::path> files;
  for (fs::path& file : list_data_files(path, "check data.path in the job file")) {
    if (!fs::is_directory(path) || file.extension() == ".safetensors") files.push_back(std::move(file));
  }
  if (files.empty()) throw environment_error("the folder has no .safetensors file", kFix, {path.string()});
  return files;
}

std::vector<std::int64_t> sample_sizes(const TensorEntry& entry) {
  return {entry.shape.begin() + 1, entry.shape.end()};
}

class TensorFiles final : public Dataset {
 public:
  TensorFiles(const fs::path& path, TensorNames names) : name_(path.filename().string()), names_(std::move(names)) {
    for (const fs::path& file : files_at(path)) files_.push_back(SafetensorsFile::open(file));
    if (names_.inputs.empty()) {
      for (const auto& [name, entry] : files_.front().entries()) {
        if (name != names_.target) names_.inputs.push_back(name);
      }
    }
    if (names_.inputs.empty()) throw bad_input("no tensor is left for the model to read", kFix, {path.string()});
    for (const SafetensorsFile& file : files_) ends_.push_back(size() + samples_of(file));
  }

  std::int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }

  Samples fetch(std::span<const std::int64_t> indices) const override {
    Samples samples;
    for (const std::string& name : names_.inputs) {
      torch::Tensor tensor = gather(name, indices);
      samples.input.defined() ? samples.more_inputs.push_back(tensor) : void(samples.input = tensor);
    }
    samples.target = names_.target.empty() ? torch::zeros({static_cast<std::int64_t>(indices.size())}, torch::kInt64)
                                           : gather(names_.target, indices);
    // Classes of any width are the same classes.
    if (torch::isIntegralType(samples.target.scalar_type(), /*includeBool=*/false))
      samples.target = samples.target.to(torch::kInt64);
    return samples;
  }

  std::string describe() const override {
    std::vector<std::string> parts;
    for (const std::string& name : names_.inputs) parts.push_back(fmt::format("{} {}", name, shape_text(name)));
    if (!names_.target.empty()) parts.push_back(fmt::format("target {} {}", names_.target, shape_text(names_.target)));
    return fmt::format("{}, {} samples of {}", name_, size(), join(parts, ", "));
  }

 private:
  std::string shape_text(const std::string& name) const {
    const auto sizes = sample_sizes(files_.front().entry(name));
    return sizes.empty() ? "(a number each)" : fmt::format("[{}]", fmt::join(sizes, ", "));
  }

  // And every tensor fits the first file's.
  std::int64_t samples_of(const SafetensorsFile& file) const {
    std::vector<std::string> all = names_.inputs;
    if (!names_.target.empty()) all.push_back(names_.target);
    std::int64_t samples = -1;
    for (const std::string& name : all) {
      if (!file.contains(name)) {
        std::vector<std::string> there;
        for (const auto& [other, entry] : file.entries()) there.push_back(other);
        throw bad_input(fmt::format("there is no tensor `{}`", printable(name)), did_you_mean(name, there),
                        {file.path().string()});
      }
      const TensorEntry &entry = file.entry(name), &first = files_.front().entry(name);
      if (entry.shape.empty()) {
        throw bad_input(fmt::format("tensor `{}` has no dim that counts samples", printable(name)), kFix,
                        {file.path().string()});
      }
      if (samples >= 0 && entry.shape[0] != samples) {
        throw bad_input(fmt::format("tensor `{}` has {} samples, `{}` has {}", printable(name), entry.shape[0],
                                    printable(all.front()), samples),
                        "the first dim counts the samples of every tensor", {file.path().string()});
      }
      if (entry.dtype != first.dtype || sample_sizes(entry) != sample_sizes(first)) {
        throw bad_input(fmt::format("tensor `{}` has samples of other sizes or type than in {}", printable(name),
                                    files_.front().path().filename().string()),
                        "all files of a folder hold the same kind of samples", {file.path().string()});
      }
      samples = entry.shape[0];
    }
    return samples;
  }

  torch::Tensor gather(const std::string& name, std::span<const std::int64_t> indices) const {
    const TensorEntry& entry = files_.front().entry(name);
    std::vector<std::int64_t> sizes = entry.shape;
    sizes[0] = static_cast<std::int64_t>(indices.size());
    torch::Tensor out = torch::empty(sizes, entry.dtype);
    const std::int64_t each = std::accumulate(sizes.begin() + 1, sizes.end(), std::int64_t{1}, std::multiplies<>());
    torch::Tensor rows = out.view({sizes[0] * each});
    for (std::size_t i = 0; i < indices.size() && each > 0; ++i) {
      const auto file = std::upper_bound(ends_.begin(), ends_.end(), indices[i]) - ends_.begin();
      const std::int64_t begin = file == 0 ? 0 : ends_[static_cast<std::size_t>(file - 1)];
      files_[static_cast<std::size_t>(file)].read_range(name, (indices[i] - begin) * each,
                                                        rows.narrow(0, static_cast<std::int64_t>(i) * each, each));
    }
    return out;
  }

  std::string name_;
  TensorNames names_;
  std::vector<SafetensorsFile> files_;
  std::vector<std::int64_t> ends_;  // samples up to the end of each file
};

class Part final : public Dataset {
 public:
  Part(std::shared_ptr<const Dataset> whole, std::int64_t begin, std::int64_t end)
      : whole_(std::move(whole)), begin_(begin), end_(end) {}
  std::int64_t size() const override { return end_ - begin_; }
  Samples fetch(std::span<const std::int64_t> indices) const override { return whole_->fetch(moved(indices)); }
  Samples fetch_in_epoch(std::span<const std::int64_t> indices, std::int64_t epoch) const override {
    return whole_->fetch_in_epoch(moved(indices), epoch);
  }
  std::string describe() const override {
    return fmt::format("{} (samples {} to {})", whole_->describe(), begin_, end_ - 1);
  }
  std::int64_t tokens_per_sample() const override { return whole_->tokens_per_sample(); }
  std::int64_t targets_per_sample() const override { return whole_->targets_per_sample(); }
  std::int64_t padding_id() const override { return whole_->padding_id(); }

 private:
  std::vector<std::int64_t> moved(std::span<const std::int64_t> indices) const {
    std::vector<std::int64_t> there(indices.begin(), indices.end());
    for (std::int64_t& index : there) index += begin_;
    return there;
  }

  std::shared_ptr<const Dataset> whole_;
  std::int64_t begin_, end_;
};

}  // namespace

std::shared_ptr<const Dataset> open_tensor_files(const fs::path& path, const TensorNames& names) {
  return std::make_shared<TensorFiles>(path, names);
}

std::shared_ptr<const Dataset> part_of(std::shared_ptr<const Dataset> whole, std::int64_t begin, std::int64_t end) {
  return std::make_shared<Part>(std::move(whole), begin, end);
}

}  // namespace lockstep::data
