#include "lockstep/data/plugin_data.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/plugin/library.h"

namespace lockstep::data {
namespace {

using torch::Tensor;

class PluginDataset final : public Dataset {
 public:
  PluginDataset(std::unique_ptr<plugin::Dataset> own, std::string title, std::int64_t vocab)
      : own_(std::move(own)), title_(std::move(title)), vocab_(vocab) {
    size_ = plugin::calling(title_, "size", [&] { return own_->size(); });
    tokens_ = plugin::calling(title_, "tokens_per_sample", [&] { return own_->tokens_per_sample(); });
    description_ = printable(plugin::calling(title_, "describe", [&] { return own_->describe(); }));
    if (size_ < 0 || tokens_ < 0) throw wrong("has a size or a number of tokens below 0", "return 0 or more");
  }

  std::int64_t size() const override { return size_; }
  std::int64_t tokens_per_sample() const override { return tokens_; }
  std::string describe() const override { return description_; }

  Samples fetch(std::span<const std::int64_t> indices) const override {
    plugin::Samples got = plugin::calling(
        title_, "fetch", [&] { return own_->fetch(std::vector<std::int64_t>(indices.begin(), indices.end())); });
    check(got, static_cast<std::int64_t>(indices.size()));
    Samples samples{.input = got.inputs.front().contiguous(), .target = got.target.contiguous()};
    for (std::size_t i = 1; i < got.inputs.size(); ++i) samples.more_inputs.push_back(got.inputs[i].contiguous());
    return samples;
  }

 private:
  UserError wrong(const std::string& problem, const std::string& fix) const {
    return UserError(ExitCode::kRunFailed, title_ + ": " + problem, fix);
  }

  void check(const plugin::Samples& got, std::int64_t count) const {
    if (got.inputs.empty()) throw wrong("fetch returns no input", "fill Samples::inputs");
    std::vector<Tensor> all = got.inputs;
    all.push_back(got.target);
    for (const Tensor& tensor : all) {
      const bool fits = tensor.defined() && tensor.dim() > 0 && tensor.size(0) == count && tensor.is_cpu();
      if (fits) continue;
      throw wrong(fmt::format("fetch of {} samples returns a tensor that has not so many", count),
                  "every tensor has the samples as its first dimension, on the CPU");
    }
    if (vocab_ <= 0 || count == 0) return;
    const Tensor& ids = got.inputs.front();
    if (ids.scalar_type() != torch::kInt64) throw wrong("a language model reads int64 ids", "return token ids");
    const std::int64_t low = ids.min().item<std::int64_t>(), high = ids.max().item<std::int64_t>();
    if (low >= 0 && high < vocab_) return;
    throw wrong(fmt::format("has ids from {} to {}, the model's vocab is {}", low, high, vocab_),
                "set model.vocab above the largest id");
  }

  std::unique_ptr<plugin::Dataset> own_;
  std::string title_;
  std::int64_t vocab_, size_ = 0, tokens_ = 0;
  std::string description_;
};

}  // namespace

Datasets open_plugin_data(const spec::Job& job) {
  const spec::PluginUse& use = job.data.plugin;
  const std::int64_t vocab = job.model.is_language_model() ? job.model.vocab : 0;
  const auto open = [&](plugin::Split split) {
    return std::make_shared<PluginDataset>(plugin::make_dataset(use, "data", split),
                                           plugin::title_of(use, spec::PluginKind::kDataset), vocab);
  };
  Datasets datasets{open(plugin::Split::kTraining), nullptr};
  if (auto held = open(plugin::Split::kEvaluation); held->size() > 0) datasets.evaluation = std::move(held);
  return datasets;
}

}  // namespace lockstep::data
