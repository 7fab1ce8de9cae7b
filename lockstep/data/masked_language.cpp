#include "lockstep/data/masked_language.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/counter_random.h"
#include "lockstep/base/error.h"
#include "lockstep/base/permutation.h"

namespace lockstep::data {
namespace {

constexpr double kChosenShare = 0.15;

class MaskedLanguageDataset final : public Dataset {
 public:
  MaskedLanguageDataset(std::shared_ptr<const TokenStream> stream, std::int64_t begin, std::int64_t windows,
                        std::int64_t window, const MaskedLanguageOptions& options)
      : stream_(std::move(stream)), begin_(begin), size_(windows), window_(window), options_(options) {}

  std::int64_t size() const override { return size_; }
  std::int64_t tokens_per_sample() const override { return options_.sequence_length; }
  std::int64_t targets_per_sample() const override {
    return std::max<std::int64_t>(1, std::llround(kChosenShare * static_cast<double>(window_)));
  }

  Samples fetch(std::span<const std::int64_t> indices) const override { return fetch_in_epoch(indices, 0); }

  Samples fetch_in_epoch(std::span<const std::int64_t> indices, std::int64_t epoch) const override {
    const auto n = static_cast<std::int64_t>(indices.size());
    const std::int64_t length = options_.sequence_length;
    Samples samples{torch::empty({n, length}, torch::kInt64), torch::full({n, length}, kIgnoredTarget, torch::kInt64)};
    std::int64_t* input = samples.input.data_ptr<std::int64_t>();
    std::int64_t* target = samples.target.data_ptr<std::int64_t>();
    for (const std::int64_t index : indices) {
      if (options_.first) input[0] = *options_.first;
      if (options_.last) input[length - 1] = *options_.last;
      const std::int64_t offset = options_.first ? 1 : 0;
      const std::span<std::int64_t> window(input + offset, static_cast<std::size_t>(window_));
      stream_->copy(begin_ + index * window_, window);
      hide(window, target + offset, combine(options_.seed, static_cast<std::uint64_t>(epoch)), index);
      input += length;
      target += length;
    }
    return samples;
  }

  std::string describe() const override {
    return fmt::format("{} sequences of {} tokens, {} of each hidden", size_, options_.sequence_length,
                       targets_per_sample());
  }

 private:
  bool is_special(std::int64_t token) const {
    return (options_.first && token == *options_.first) || (options_.last && token == *options_.last);
  }

  void hide(std::span<std::int64_t> window, std::int64_t* target, std::uint64_t key, std::int64_t index) const {
    const Permutation order(window_, key, static_cast<std::uint64_t>(index));
    const std::uint64_t words = combine(key, static_cast<std::uint64_t>(index));
    std::int64_t wanted = targets_per_sample();
    for (std::int64_t i = 0; i < window_ && wanted > 0; ++i) {
      const std::int64_t place = order(i);
      std::int64_t& token = window[static_cast<std::size_t>(place)];
      if (is_special(token)) continue;
      --wanted;
      target[place] = token;
      const std::uint64_t chance = below(combine(words, static_cast<std::uint64_t>(2 * place)), 10);
      if (chance < 8) {
        token = options_.mask;
      } else if (chance == 8) {
        const std::uint64_t random = combine(words, static_cast<std::uint64_t>(2 * place + 1));
        token = static_cast<std::int64_t>(below(random, static_cast<std::uint64_t>(stream_->vocab_size())));
      }
    }
  }

  std::shared_ptr<const TokenStream> stream_;
  std::int64_t begin_;
  std::int64_t size_;
  std::int64_t window_;
  MaskedLanguageOptions options_;
};

}  // namespace

std::shared_ptr<const Dataset> masked_language_windows(std::shared_ptr<const TokenStream> stream, std::int64_t begin,
                                                       std::int64_t end, const MaskedLanguageOptions& options,
                                                       const std::string& what) {
  LOCKSTEP_ASSERT(begin >= 0 && begin <= end && end <= stream->size(), "window out of range");
  const std::int64_t window = options.sequence_length - (options.first ? 1 : 0) - (options.last ? 1 : 0);
  if (window < 1) {
    throw bad_input(
        fmt::format("a sequence_length of {} leaves no room between [CLS] and [SEP]", options.sequence_length),
        "use a longer batch.sequence_length");
  }
  if (end - begin < window) {
    throw bad_input(fmt::format("{} has {} tokens, one sequence needs {}", what, end - begin, window),
                    "use more text, a smaller batch.sequence_length, or another data.holdout");
  }
  return std::make_shared<MaskedLanguageDataset>(std::move(stream), begin, (end - begin) / window, window, options);
}

}  // namespace lockstep::data
