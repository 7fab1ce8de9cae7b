// Dataset: numbered samples that can be fetched in any order.
//
// Implementations are immutable after construction: every method is const and safe from any number of threads at once.
// Files are memory-mapped and converted at batch time, so opening a data set costs neither time nor memory.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep::data {

// n samples side by side.
//   language models: input int64 [n, seq], target int64 [n, seq], already shifted; -100 is not counted in the loss
//   images:          input float32 [n, C, H, W] normalised, or uint8 as the file has them; target int64 [n]
//   classification:  input int64 [n, seq] padded with Dataset::padding_id(), target int64 [n]
//   tensors:         whatever the file has, samples first; without a target it is int64 [n] zeros
struct Samples {
  torch::Tensor input;
  torch::Tensor target;
  std::vector<torch::Tensor> more_inputs = {};  // tensors: those after the first
  // Where attention is to stay within documents: int64 [n, seq], for each token the place in its sequence where its
  // document begins. Undefined otherwise.
  torch::Tensor documents = {};
};

// The target that no loss counts (PyTorch's ignore_index).
inline constexpr std::int64_t kIgnoredTarget = -100;

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;

  // Fetches the samples in the order given; no indices give tensors with a first dimension of 0. The tensors own
  // their memory. Throws UserError when a record turns out to be wrong.
  virtual Samples fetch(std::span<const std::int64_t> indices) const = 0;

  // The same samples as they look in epoch `epoch` (0: fetch()): masked data hides other tokens in every epoch.
  virtual Samples fetch_in_epoch(std::span<const std::int64_t> indices, std::int64_t epoch) const {
    static_cast<void>(epoch);
    return fetch(indices);
  }

  // One line for logs: "MNIST, 60000 images of 28x28".
  virtual std::string describe() const = 0;

  // Tokens per sample (0 for images): what tokens per second are counted with.
  virtual std::int64_t tokens_per_sample() const { return 0; }

  // The most targets that the loss of one sample sums over: one per token, or one per image or sentence. Windows of
  // text, images and sentences have exactly that many; instruction and masked data count fewer, and the number of a
  // batch is that of its targets that are not kIgnoredTarget.
  virtual std::int64_t targets_per_sample() const { return tokens_per_sample() > 0 ? tokens_per_sample() : 1; }

  // The id that fills up short sequences, from which the attention mask is derived; -1: samples are never padded, or
  // only behind the last counted target, where no causal model looks.
  virtual std::int64_t padding_id() const { return -1; }
};

}  // namespace lockstep::data
