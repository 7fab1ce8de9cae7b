#include "lockstep/data/classification.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/data/labelled_sentences.h"
#include "lockstep/data/mapped_file.h"

namespace lockstep::data {
namespace {

class ClassificationDataset final : public Dataset {
 public:
  ClassificationDataset(std::int64_t length, TokenId padding) : length_(length), padding_(padding) {}

  void add(std::int64_t label, std::span<const TokenId> ids) {
    labels_.push_back(label);
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    ends_.push_back(ids_.size());
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(labels_.size()); }
  std::int64_t tokens_per_sample() const override { return length_; }
  std::int64_t targets_per_sample() const override { return 1; }  // the label
  std::int64_t padding_id() const override { return padding_; }

  Samples fetch(std::span<const std::int64_t> indices) const override {
    const auto n = static_cast<std::int64_t>(indices.size());
    Samples samples{torch::full({n, length_}, static_cast<std::int64_t>(padding_), torch::kInt64),
                    torch::empty({n}, torch::kInt64)};
    std::int64_t* input = samples.input.data_ptr<std::int64_t>();
    std::int64_t* target = samples.target.data_ptr<std::int64_t>();
    for (const std::int64_t index : indices) {
      const std::size_t begin = index == 0 ? 0 : ends_[index - 1];
      std::copy(ids_.begin() + begin, ids_.begin() + ends_[index], input);
      input += length_;
      *target++ = labels_[index];
    }
    return samples;
  }

  std::string describe() const override { return fmt::format("{} sentences of up to {} tokens", size(), length_); }

 private:
  std::int64_t length_;
  TokenId padding_;
  std::vector<std::int64_t> labels_;
  std::vector<TokenId> ids_;       // all sentences one after the other
  std::vector<std::size_t> ends_;  // of each sentence in ids_
};

// Cut so that [SEP] still fits.
std::vector<TokenId> encode_sentence(const Tokenizer& tokenizer, std::string_view sentence, std::int64_t length) {
  const auto first = tokenizer.token_id("[CLS]");
  const auto last = tokenizer.token_id("[SEP]");
  std::vector<TokenId> ids;
  if (first) ids.push_back(*first);
  tokenizer.encode(sentence, ids);
  const std::size_t room = static_cast<std::size_t>(length) - (last && length > 1 ? 1 : 0);
  if (ids.size() > room) ids.resize(room);
  if (last && static_cast<std::int64_t>(ids.size()) < length) ids.push_back(*last);
  return ids;
}

}  // namespace

std::shared_ptr<const Dataset> open_classification(const std::filesystem::path& path, const Tokenizer& tokenizer,
                                                   std::int64_t sequence_length, std::int64_t classes, TokenId padding,
                                                   const std::vector<std::string>& names) {
  const MappedFile file(path, "check data.path in the job file");
  const std::int64_t limit = classes > 0 ? classes : std::int64_t{1} << 31;
  auto dataset = std::make_shared<ClassificationDataset>(sequence_length, padding);
  const auto add = [&](std::int64_t label, std::string_view sentence, const SourcePlace& place) {
    if (label < 0 || label >= limit) {
      throw bad_input(fmt::format("label {} out of range 0..{}", label, limit - 1), "check model.classes", place);
    }
    dataset->add(label, encode_sentence(tokenizer, sentence, sequence_length));
  };
  for_each_labelled_sentence(file, add, names);
  if (dataset->size() == 0)
    throw bad_input("the file holds no sentences", "write label<TAB>sentence lines", {file.path()});
  return dataset;
}

}  // namespace lockstep::data
