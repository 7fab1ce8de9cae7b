#include "lockstep/data/token_stream.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/data/mapped_file.h"

namespace lockstep::data {
namespace {

constexpr const char* kTextFix = "check data.path in the job file";

class ByteStream final : public TokenStream {
 public:
  explicit ByteStream(const std::vector<std::filesystem::path>& paths) {
    for (const auto& path : paths) {
      files_.emplace_back(path, kTextFix);
      starts_.push_back(size_);
      size_ += static_cast<std::int64_t>(files_.back().size());
    }
  }

  std::int64_t size() const override { return size_; }
  std::int64_t vocab_size() const override { return 256; }
  bool knows_documents() const override { return true; }  // a file each

  std::vector<std::int64_t> document_starts(std::int64_t first, std::int64_t count) const override {
    return {std::upper_bound(starts_.begin(), starts_.end(), first),
            std::upper_bound(starts_.begin(), starts_.end(), first + count)};
  }

  void copy(std::int64_t first, std::span<std::int64_t> out) const override {
    LOCKSTEP_ASSERT(first >= 0 && first + static_cast<std::int64_t>(out.size()) <= size_, "range outside the stream");
    std::size_t file = std::upper_bound(starts_.begin(), starts_.end(), first) - starts_.begin() - 1;
    for (std::size_t done = 0; done < out.size(); ++file) {
      files_[file].require_unchanged();
      const auto offset = static_cast<std::size_t>(first + static_cast<std::int64_t>(done) - starts_[file]);
      const auto bytes = files_[file].bytes().subspan(offset);
      const std::size_t take = std::min(bytes.size(), out.size() - done);
      std::copy_n(bytes.begin(), take, out.begin() + done);
      done += take;
    }
  }

 private:
  std::vector<MappedFile> files_;
  std::vector<std::int64_t> starts_;
  std::int64_t size_ = 0;
};

class WindowDataset final : public Dataset {
 public:
  WindowDataset(std::shared_ptr<const TokenStream> stream, std::int64_t begin, std::int64_t end, std::int64_t length,
                bool documents)
      : stream_(std::move(stream)),
        begin_(begin),
        length_(length),
        size_((end - begin - 1) / length),
        documents_(documents) {}

  std::int64_t size() const override { return size_; }
  std::int64_t tokens_per_sample() const override { return length_; }

  Samples fetch(std::span<const std::int64_t> indices) const override {
    const auto n = static_cast<std::int64_t>(indices.size());
    Samples samples{torch::empty({n, length_}, torch::kInt64), torch::empty({n, length_}, torch::kInt64)};
    std::int64_t* input = samples.input.data_ptr<std::int64_t>();
    std::int64_t* target = samples.target.data_ptr<std::int64_t>();
    std::vector<std::int64_t> window(static_cast<std::size_t>(length_) + 1);
    for (const std::int64_t index : indices) {
      stream_->copy(begin_ + index * length_, window);
      input = std::copy_n(window.begin(), length_, input);
      target = std::copy_n(window.begin() + 1, length_, target);
    }
    if (documents_) part_documents(indices, samples);
    return samples;
  }

  std::string describe() const override {
    return fmt::format("{} windows of {} tokens{}", size_, length_, documents_ ? ", documents apart" : "");
  }

 private:
  void part_documents(std::span<const std::int64_t> indices, Samples& samples) const {
    samples.documents = torch::zeros({static_cast<std::int64_t>(indices.size()), length_}, torch::kInt64);
    std::int64_t* row = samples.documents.data_ptr<std::int64_t>();
    std::int64_t* target = samples.target.data_ptr<std::int64_t>();
    for (const std::int64_t index : indices) {
      const std::int64_t first = begin_ + index * length_;
      for (const std::int64_t start : stream_->document_starts(first, length_)) {
        const std::int64_t place = start - first;  // length_: what follows the window
        target[place - 1] = kIgnoredTarget;
        std::fill(row + place, row + length_, place);
      }
      row += length_;
      target += length_;
    }
  }

  std::shared_ptr<const TokenStream> stream_;
  std::int64_t begin_;
  std::int64_t length_;
  std::int64_t size_;
  bool documents_;
};

}  // namespace

std::shared_ptr<const TokenStream> open_byte_stream(const std::vector<std::filesystem::path>& files) {
  return std::make_shared<ByteStream>(files);
}

std::shared_ptr<const Dataset> language_model_windows(std::shared_ptr<const TokenStream> stream, std::int64_t begin,
                                                      std::int64_t end, std::int64_t sequence_length,
                                                      const std::string& what, bool documents) {
  LOCKSTEP_ASSERT(sequence_length >= 1 && begin >= 0 && begin <= end && end <= stream->size(), "window out of range");
  if (end - begin <= sequence_length) {
    throw bad_input(fmt::format("{} has {} tokens, one window of sequence_length {} needs {}", what, end - begin,
                                sequence_length, sequence_length + 1),
                    "use more text, a smaller batch.sequence_length, or another data.holdout");
  }
  if (documents && !stream->knows_documents()) {
    throw bad_input(fmt::format("{} does not say where documents end", what),
                    "write the shards again with `lockstep tokenize`, or leave data.packing out");
  }
  return std::make_shared<WindowDataset>(std::move(stream), begin, end, sequence_length, documents);
}

}  // namespace lockstep::data
