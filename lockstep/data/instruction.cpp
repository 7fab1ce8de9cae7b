#include "lockstep/data/instruction.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/data/json_lines.h"
#include "lockstep/data/mapped_file.h"
#include "lockstep/data/packing.h"

namespace lockstep::data {
namespace {

// What became of the examples, for describe().
struct Tally {
  std::int64_t cut = 0;       // lost their end
  std::int64_t left_out = 0;  // lost every answer
  std::int64_t answers = 0;   // tokens that are targets
};

class InstructionDataset final : public Dataset {
 public:
  InstructionDataset(std::shared_ptr<const InstructionExamples> examples,
                     std::vector<std::vector<std::int64_t>> samples, const InstructionOptions& options, Tally tally)
      : examples_(std::move(examples)),
        samples_(std::move(samples)),
        length_(options.sequence_length),
        padding_(options.padding),
        packing_(options.packing),
        tally_(tally) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(samples_.size()); }
  std::int64_t tokens_per_sample() const override { return length_; }

  Samples fetch(std::span<const std::int64_t> indices) const override {
    const auto n = static_cast<std::int64_t>(indices.size());
    Samples samples{torch::full({n, length_}, static_cast<std::int64_t>(padding_), torch::kInt64),
                    torch::full({n, length_}, kIgnoredTarget, torch::kInt64)};
    std::int64_t* input = samples.input.data_ptr<std::int64_t>();
    std::int64_t* target = samples.target.data_ptr<std::int64_t>();
    if (packing_ == spec::Packing::kDocuments) samples.documents = torch::zeros({n, length_}, torch::kInt64);
    std::int64_t* document = samples.documents.defined() ? samples.documents.data_ptr<std::int64_t>() : nullptr;
    for (const std::int64_t index : indices) {
      std::int64_t place = 0;
      for (const std::int64_t example : samples_[static_cast<std::size_t>(index)]) {
        place = put(examples_->at(example), place, input, target);
        // Up to the end: the next example or the padding is a document of its own.
        if (document != nullptr && place < length_) std::fill(document + place, document + length_, place);
      }
      input += length_;
      target += length_;
      if (document != nullptr) document += length_;
    }
    return samples;
  }

  std::string describe() const override {
    std::int64_t examples = 0;
    for (const auto& sample : samples_) examples += static_cast<std::int64_t>(sample.size());
    std::string text =
        fmt::format("{} examples in {} {} of {} tokens, {} tokens of answers", examples, size(),
                    packing_ != spec::Packing::kNone ? "packed sequences" : "sequences", length_, tally_.answers);
    if (packing_ == spec::Packing::kDocuments) text += "; attention stays within examples";
    if (tally_.cut > 0) text += fmt::format("; {} cut at the end", tally_.cut);
    if (tally_.left_out > 0) text += fmt::format("; {} dropped, because their answers lie beyond", tally_.left_out);
    return text;
  }

 private:
  // Writes one example from `place` on; returns the place behind it. Token t is an input at t and a target at t - 1.
  std::int64_t put(const InstructionExamples::Example& example, std::int64_t place, std::int64_t* input,
                   std::int64_t* target) const {
    const auto count = std::min<std::int64_t>(static_cast<std::int64_t>(example.ids.size()), length_ + 1 - place);
    for (std::int64_t i = 0; i < count; ++i, ++place) {
      const auto at = static_cast<std::size_t>(i);
      if (place < length_) input[place] = example.ids[at];
      if (i > 0 && example.counted[at] != 0) target[place - 1] = example.ids[at];
    }
    return place;
  }

  std::shared_ptr<const InstructionExamples> examples_;
  std::vector<std::vector<std::int64_t>> samples_;  // the examples of each sample
  std::int64_t length_;
  TokenId padding_;
  spec::Packing packing_;
  Tally tally_;
};

// Targets among the first `kept` tokens of an example.
std::int64_t count_targets(const InstructionExamples::Example& example, std::size_t kept) {
  return std::count(example.counted.begin() + 1, example.counted.begin() + static_cast<std::ptrdiff_t>(kept),
                    std::uint8_t{1});
}

}  // namespace

InstructionExamples::Example InstructionExamples::at(std::int64_t index) const {
  const auto place = static_cast<std::size_t>(index);
  const std::size_t begin = place == 0 ? 0 : ends_[place - 1];
  const std::size_t count = ends_[place] - begin;
  return {std::span(ids_).subspan(begin, count), std::span(counted_).subspan(begin, count)};
}

void InstructionExamples::add(const std::vector<Segment>& segments, const Tokenizer& tokenizer) {
  std::vector<TokenId> ids;
  std::vector<std::uint8_t> counted;
  for (const Segment& segment : segments) {
    tokenizer.encode_after(segment.text, ids);
    counted.resize(ids.size(), segment.answer ? 1 : 0);
  }
  if (ids.empty()) return;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  counted_.insert(counted_.end(), counted.begin(), counted.end());
  ends_.push_back(ids_.size());
}

std::shared_ptr<const InstructionExamples> read_instructions(const std::vector<std::filesystem::path>& files,
                                                             const Tokenizer& tokenizer,
                                                             const InstructionOptions& options) {
  auto examples = std::make_shared<InstructionExamples>();
  for (const auto& path : files) {
    const MappedFile file(path, "check data.path in the job file");
    for_each_json_line(file, [&](const nlohmann::json& record, const SourcePlace& place) {
      for (const Conversation& conversation : read_conversations(record, place)) {
        examples->add(render(options.chat_template, conversation, options.ends, place), tokenizer);
      }
    });
  }
  return examples;
}

std::shared_ptr<const Dataset> instruction_samples(std::shared_ptr<const InstructionExamples> examples,
                                                   std::int64_t begin, std::int64_t end,
                                                   const InstructionOptions& options, const std::string& what) {
  const auto capacity = static_cast<std::size_t>(options.sequence_length) + 1;
  Tally tally;
  std::vector<std::int64_t> kept, lengths;
  for (std::int64_t index = begin; index < end; ++index) {
    const InstructionExamples::Example example = examples->at(index);
    const std::size_t length = std::min(example.ids.size(), capacity);
    const std::int64_t targets = count_targets(example, length);
    if (targets == 0) {
      ++tally.left_out;
      continue;
    }
    if (length < example.ids.size()) ++tally.cut;
    tally.answers += targets;
    kept.push_back(index);
    lengths.push_back(static_cast<std::int64_t>(length));
  }
  if (kept.empty()) {
    throw bad_input(fmt::format("{} has no answer within {} tokens", what, options.sequence_length),
                    "use more data, or a longer batch.sequence_length");
  }
  std::vector<std::vector<std::int64_t>> samples;
  if (options.packing != spec::Packing::kNone) {
    samples = pack_first_fit(lengths, static_cast<std::int64_t>(capacity));
    for (auto& sample : samples) {
      for (std::int64_t& place : sample) place = kept[static_cast<std::size_t>(place)];
    }
  } else {
    for (const std::int64_t index : kept) samples.push_back({index});
  }
  return std::make_shared<InstructionDataset>(std::move(examples), std::move(samples), options, tally);
}

}  // namespace lockstep::data
