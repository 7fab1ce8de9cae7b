#include "lockstep/data/mixed_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "lockstep/base/counter_random.h"
#include "lockstep/base/error.h"
#include "lockstep/base/permutation.h"

namespace lockstep::data {
namespace {

// How many of `total` each weight gets: its share rounded down, the rest to the largest remainders; none gets nothing.
std::vector<std::int64_t> shares(const std::vector<double>& weights, std::int64_t total) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::int64_t> counts;
  std::vector<std::pair<double, std::size_t>> remainders;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double exact = static_cast<double>(total) * weights[i] / sum;
    counts.push_back(std::max<std::int64_t>(1, static_cast<std::int64_t>(std::floor(exact))));
    remainders.emplace_back(std::floor(exact) - exact, i);
  }
  std::stable_sort(remainders.begin(), remainders.end());
  std::int64_t left = total - std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  for (std::size_t i = 0; left > 0; ++i, --left) ++counts[remainders[i % remainders.size()].second];
  return counts;
}

// Samples of several sources in the order in which they were asked for.
Samples in_order(const std::vector<Samples>& parts, const std::vector<std::int64_t>& places) {
  std::vector<torch::Tensor> inputs, targets, documents;
  for (const Samples& part : parts) {
    inputs.push_back(part.input);
    targets.push_back(part.target);
    if (part.documents.defined()) documents.push_back(part.documents);
  }
  // places[i]: where the i-th sample of the parts belongs.
  std::vector<std::int64_t> order(places.size());
  for (std::size_t i = 0; i < places.size(); ++i)
    order[static_cast<std::size_t>(places[i])] = static_cast<std::int64_t>(i);
  const torch::Tensor index = torch::tensor(order, torch::kInt64);
  const bool images = inputs.front().dim() == 4 && inputs.front().is_contiguous(at::MemoryFormat::ChannelsLast);
  torch::Tensor input = torch::cat(inputs).index_select(0, index);
  if (images) input = input.contiguous(at::MemoryFormat::ChannelsLast);
  Samples samples{input, torch::cat(targets).index_select(0, index)};
  if (!documents.empty()) samples.documents = torch::cat(documents).index_select(0, index);
  return samples;
}

class MixedDataset final : public Dataset {
 public:
  // `counts`: samples of each source in an epoch. Not `shuffled`: in their order, from the first one on.
  MixedDataset(std::vector<std::shared_ptr<const Dataset>> sources, std::vector<std::int64_t> counts,
               std::uint64_t seed, bool shuffled)
      : sources_(std::move(sources)), counts_(std::move(counts)), seed_(seed), shuffled_(shuffled) {
    for (const std::int64_t count : counts_) {
      starts_.push_back(size_);
      size_ += count;
    }
    for (const auto& source : sources_) {
      const bool alike = source->tokens_per_sample() == sources_.front()->tokens_per_sample() &&
                         source->padding_id() == sources_.front()->padding_id();
      if (!alike)
        throw bad_input("the sources of the mixture give samples of different lengths", "use data of one kind");
    }
  }

  std::int64_t size() const override { return size_; }
  std::int64_t tokens_per_sample() const override { return sources_.front()->tokens_per_sample(); }
  std::int64_t targets_per_sample() const override { return sources_.front()->targets_per_sample(); }
  std::int64_t padding_id() const override { return sources_.front()->padding_id(); }

  Samples fetch(std::span<const std::int64_t> indices) const override { return fetch_in_epoch(indices, 0); }

  Samples fetch_in_epoch(std::span<const std::int64_t> indices, std::int64_t epoch) const override {
    if (indices.empty()) return sources_.front()->fetch_in_epoch(indices, 0);
    struct Wanted {
      std::vector<std::int64_t> samples, places;
    };
    std::map<std::pair<std::size_t, std::int64_t>, Wanted> wanted;  // by source and pass over it
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const auto source =
          static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), indices[i]) - starts_.begin() - 1);
      const std::int64_t drawn = epoch * counts_[source] + indices[i] - starts_[source];
      const std::int64_t all = sources_[source]->size();
      const std::int64_t pass = shuffled_ ? drawn / all : epoch;
      const std::int64_t place = shuffled_ ? drawn % all : indices[i] - starts_[source];
      Wanted& of_pass = wanted[{source, pass}];
      of_pass.samples.push_back(shuffled_ ? order(source, pass)(place) : place);
      of_pass.places.push_back(static_cast<std::int64_t>(i));
    }
    std::vector<Samples> parts;
    std::vector<std::int64_t> places;
    for (const auto& [key, of_pass] : wanted) {
      parts.push_back(sources_[key.first]->fetch_in_epoch(of_pass.samples, key.second));
      places.insert(places.end(), of_pass.places.begin(), of_pass.places.end());
    }
    return in_order(parts, places);
  }

  std::string describe() const override {
    std::string text = fmt::format("{} samples of {} sources:", size_, sources_.size());
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      text += fmt::format("{} {} of {}", i == 0 ? "" : ",", counts_[i], sources_[i]->describe());
    }
    return text;
  }

 private:
  Permutation order(std::size_t source, std::int64_t pass) const {
    return {sources_[source]->size(), combine(seed_, source + 1), static_cast<std::uint64_t>(pass)};
  }

  std::vector<std::shared_ptr<const Dataset>> sources_;
  std::vector<std::int64_t> counts_, starts_;
  std::uint64_t seed_;
  bool shuffled_;
  std::int64_t size_ = 0;
};

}  // namespace

std::shared_ptr<const Dataset> mix_datasets(std::vector<WeightedSource> sources, std::uint64_t seed) {
  std::vector<std::shared_ptr<const Dataset>> datasets;
  std::vector<double> weights;
  std::int64_t total = 0;
  for (WeightedSource& source : sources) {
    LOCKSTEP_ASSERT(source.weight > 0, "a weight of a mixture is not above 0");
    total += source.dataset->size();
    weights.push_back(source.weight);
    datasets.push_back(std::move(source.dataset));
  }
  return std::make_shared<MixedDataset>(std::move(datasets), shares(weights, total), seed, true);
}

std::shared_ptr<const Dataset> join_datasets(const std::vector<std::shared_ptr<const Dataset>>& sources) {
  std::vector<std::int64_t> counts;
  counts.reserve(sources.size());
  for (const auto& source : sources) counts.push_back(source->size());
  return std::make_shared<MixedDataset>(sources, std::move(counts), 0, false);
}

}  // namespace lockstep::data
