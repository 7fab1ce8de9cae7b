// Small specs of every family that can be trained.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/nn/model.h"
#include "lockstep/nn/random.h"
#include "lockstep/spec/model.h"
#include "tests/support/tiny_models.h"

namespace lockstep::nn::testing {

inline spec::Model small_gpt() { return tiny::gpt_of({2, 32, 4, 128, 61, 96}, "small-gpt"); }
inline spec::Model small_llama() { return tiny::llama_of({2, 32, 4, 88, 61, 96}, 2, "small-llama"); }

inline spec::Model small_bert() {
  spec::Model model = small_gpt();
  model.name = "small-bert";
  model.arch = spec::Arch::kBert;
  model.type_vocab = 2;
  model.activation = spec::Activation::kGelu;
  model.norm_epsilon = 1e-12;
  return model;
}

inline spec::Model small_mamba() { return tiny::mamba_of({2, 24, 1, 0, 61, 96}, {4, 4, 2, 3}, "small-mamba"); }

inline spec::Model small_image(spec::Arch arch) {
  spec::Model model;
  model.name = "small-image";
  model.arch = arch;
  model.image_size = arch == spec::Arch::kMnistCnn ? 12 : 32;
  model.image_channels = arch == spec::Arch::kMnistCnn ? 1 : 3;
  model.classes = 7;
  if (arch == spec::Arch::kResNet) {
    model.stage_blocks = {1, 2};
    model.bottleneck = true;
  }
  return model;
}

inline std::vector<spec::Model> every_small_model() {
  spec::Model basic = small_image(spec::Arch::kResNet);
  basic.bottleneck = false;
  spec::Model tied_llama = small_llama();
  tied_llama.tied_embeddings = true;
  spec::Model classifier = small_gpt();
  classifier.classes = 5;
  spec::Model bert_classifier = small_bert();
  bert_classifier.classes = 5;
  spec::Model without_bias = small_gpt();
  without_bias.bias = false;
  without_bias.tied_embeddings = false;
  return {small_gpt(),
          small_llama(),
          small_mamba(),
          small_image(spec::Arch::kMnistCnn),
          small_image(spec::Arch::kCifarCnn),
          small_image(spec::Arch::kResNet),
          basic,
          tied_llama,
          classifier,
          bert_classifier,
          without_bias};
}

inline torch::Tensor tokens_for(const spec::Model& model, std::int64_t samples, std::int64_t seq, int salt = 0) {
  return (torch::arange(samples * seq) * 37 + 11 * salt).remainder(model.vocab).view({samples, seq});
}

// An input and a target that fit the model.
inline std::pair<torch::Tensor, torch::Tensor> batch_for(const spec::Model& model, std::int64_t samples) {
  if (model.is_image_model()) {
    auto images = torch::empty({samples, model.image_channels, model.image_size, model.image_size});
    fill_normal(images, 0.0, 1.0, stream_key(3, "images"));
    return {images, torch::arange(samples).remainder(model.classes)};
  }
  const auto tokens = tokens_for(model, samples, 20);
  if (model.classes > 0) return {tokens, torch::arange(samples).remainder(model.classes)};
  return {tokens, tokens_for(model, samples, 20, 1)};
}

// What a UserError says.
template <typename Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace lockstep::nn::testing
