#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/nn/hf_weights.h"
#include "lockstep/nn/model.h"
#include "lockstep/nn/torch_compat.h"
#include "small_models.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;
using namespace testing;

std::int64_t count_parameters(const TrainableModel& model) {
  std::int64_t count = 0;
  for (const Tensor& parameter : model.parameters()) count += parameter.numel();
  return count;
}

TEST(Models, have_the_parameters_that_the_spec_counts) {
  for (const spec::Model& spec : every_small_model()) {
    EXPECT_EQ(count_parameters(*build_model(spec)), spec::parameter_count(spec)) << spec::to_string(spec.arch);
  }
}

TEST(Models, of_published_sizes_have_the_published_parameters) {
  const auto count = [](const std::string& preset) {
    return count_parameters(*build_model(spec::load_model(preset), {.device = torch::kMeta}));
  };
  EXPECT_EQ(count("gpt2-124m"), 124439808);   // transformers: GPT2LMHeadModel
  EXPECT_EQ(count("llama2-7b"), 6738415616);  // transformers: LlamaForCausalLM
  EXPECT_EQ(count("resnet50"), 25557032);     // torchvision, 1000 classes
  EXPECT_EQ(count("mnist-cnn"), 1199882);     // PyTorch's MNIST example
}

TEST(Models, of_every_preset_have_the_parameters_that_the_spec_counts) {
  for (const std::string& preset : spec::model_preset_names()) {
    spec::Model spec = spec::load_model(preset);
    if (spec.arch == spec::Arch::kBert) spec.classes = 2;  // the count is that of a BERT with a pooler
    EXPECT_EQ(count_parameters(*build_model(spec, {.device = torch::kMeta})), spec::parameter_count(spec)) << preset;
  }
}

TEST(Models, give_logits_a_loss_and_gradients_to_every_parameter) {
  for (const spec::Model& spec : every_small_model()) {
    const auto model = build_model(spec);
    const auto [input, target] = batch_for(spec, 4);
    const Tensor logits = model->forward(input, {.training = false});
    const std::int64_t classes = spec.classes > 0 ? spec.classes : spec.vocab;
    EXPECT_EQ(logits.size(-1), classes);
    EXPECT_EQ(logits.numel() / classes, target.numel());
    const LossResult result = model->loss(input, target, {});
    EXPECT_EQ(result.count, target.numel());
    result.loss_sum.backward();
    for (const auto& parameter : model->named_parameters()) {
      ASSERT_TRUE(parameter.value().grad().defined()) << parameter.key();
      EXPECT_GT(parameter.value().grad().abs().sum().item<double>(), 0) << parameter.key();
    }
  }
}

TEST(Models, lose_what_their_logits_say) {
  for (const spec::Model& spec : every_small_model()) {
    const auto model = build_model(spec, {.dtype = torch::kDouble});
    const auto [input, target] = batch_for(spec, 4);
    const Tensor logits = model->forward(input, {.training = false});
    const LossResult result = model->loss(input, target, {.training = false});
    const Tensor flat = logits.reshape({-1, logits.size(-1)});
    const Tensor expected = -at::log_softmax(flat, 1).gather(1, target.reshape({-1, 1})).sum();
    EXPECT_NEAR(result.loss_sum.item<double>(), expected.item<double>(), 1e-9);
    EXPECT_EQ(result.correct, (flat.argmax(1) == target.reshape({-1})).sum().item<std::int64_t>());
  }
}

TEST(Models, begin_near_the_loss_of_a_guess) {
  for (const spec::Model& spec : {small_gpt(), small_llama()}) {
    const auto model = build_model(spec);
    const auto [input, target] = batch_for(spec, 4);
    const LossResult result = model->loss(input, target, {});
    EXPECT_NEAR(result.loss_sum.item<double>() / static_cast<double>(result.count), std::log(61.0), 0.3);
  }
}

TEST(LanguageModels, do_not_look_ahead) {
  for (const spec::Model& spec : {small_gpt(), small_llama()}) {
    const auto model = build_model(spec, {.dtype = torch::kDouble});
    const Tensor tokens = tokens_for(spec, 1, 90);
    Tensor changed = tokens.clone();
    changed[0][70] = (changed[0][70].item<std::int64_t>() + 1) % spec.vocab;
    const Tensor before = model->forward(tokens, {.training = false}),
                 after = model->forward(changed, {.training = false});
    const Tensor difference = (before - after).abs().amax({0, 2});
    EXPECT_EQ(difference.slice(0, 0, 70).max().item<double>(), 0.0);
    EXPECT_GT(difference.slice(0, 70).min().item<double>(), 0.0);
  }
}

TEST(LanguageModels, classify_by_the_last_token_that_is_no_padding) {
  spec::Model spec = small_gpt();
  spec.classes = 3;
  const auto model = build_model(spec, {.dtype = torch::kDouble});
  const Tensor sentence = tokens_for(spec, 1, 6).remainder(59);
  const Tensor padded = at::cat({sentence, torch::full({1, 4}, 60, torch::kLong)}, 1);
  const Tensor alone = model->forward(sentence, {.training = false});
  EXPECT_TRUE(at::allclose(alone, model->forward(padded, {.padding_id = 60, .training = false}), 1e-12, 1e-12));
}

TEST(Initialisation, does_not_depend_on_threads_or_dtype) {
  for (const spec::Model& spec : every_small_model()) {
    compat::set_compute_threads(1);
    const auto one = build_model(spec, {.dtype = torch::kDouble, .seed = 5});
    compat::set_compute_threads(2);
    const auto two = build_model(spec, {.dtype = torch::kDouble, .seed = 5});
    const auto narrow = build_model(spec, {.dtype = torch::kFloat, .seed = 5});
    const TensorMap expected = state_dict(*one), same = state_dict(*two), rounded = state_dict(*narrow);
    for (const auto& [name, tensor] : expected) {
      EXPECT_TRUE(tensor.equal(same.at(name))) << name;
      EXPECT_TRUE(tensor.to(rounded.at(name).scalar_type()).equal(rounded.at(name))) << name;
    }
  }
}

double standard_deviation(const TensorMap& state, const std::string& name) {
  return state.at(name).std().item<double>();
}

TEST(Initialisation, has_the_deviations_of_gpt2) {
  spec::Model spec = small_gpt();
  spec.hidden = 256;
  spec.head_dim = 64;
  spec.ffn_hidden = 1024;
  const TensorMap state = state_dict(*build_model(spec));
  EXPECT_NEAR(standard_deviation(state, "transformer.wte.weight"), 0.02, 6e-4);
  EXPECT_NEAR(standard_deviation(state, "transformer.h.1.attn.c_attn.weight"), 0.02, 3e-4);
  EXPECT_NEAR(standard_deviation(state, "transformer.h.0.attn.c_proj.weight"), 0.02 / 2, 2e-4);  // sqrt(2 * 2 layers)
  EXPECT_NEAR(standard_deviation(state, "transformer.h.1.mlp.c_proj.weight"), 0.02 / 2, 1e-4);
  EXPECT_EQ(state.at("transformer.h.0.attn.c_attn.bias").abs().max().item<double>(), 0.0);
  EXPECT_EQ(state.at("transformer.ln_f.weight").min().item<double>(), 1.0);
}

TEST(Initialisation, has_the_bounds_of_torch_convolutions_and_torchvision) {
  const TensorMap cnn = state_dict(*build_model(small_image(spec::Arch::kMnistCnn)));
  EXPECT_LE(cnn.at("conv2.weight").abs().max().item<double>(), 1 / std::sqrt(32 * 9.0));
  EXPECT_GT(cnn.at("conv2.weight").abs().max().item<double>(), 0.99 / std::sqrt(32 * 9.0));
  EXPECT_LE(cnn.at("conv2.bias").abs().max().item<double>(), 1 / std::sqrt(32 * 9.0));
  const TensorMap resnet = state_dict(*build_model(small_image(spec::Arch::kResNet)));
  EXPECT_NEAR(standard_deviation(resnet, "layer2.0.conv2.weight"), std::sqrt(2.0 / (128 * 9)), 1e-3);
}

TEST(BatchNorm, keeps_running_statistics_that_belong_to_the_state) {
  const spec::Model spec = small_image(spec::Arch::kCifarCnn);
  const auto model = build_model(spec);
  const auto [input, target] = batch_for(spec, 4);
  const TensorMap state = state_dict(*model);
  const Tensor before = state.at("bn1.running_mean").clone();
  model->loss(input, target, {.training = false});
  EXPECT_TRUE(before.equal(state.at("bn1.running_mean")));
  model->loss(input, target, {.training = true});
  EXPECT_FALSE(before.equal(state.at("bn1.running_mean")));
  EXPECT_EQ(state.at("bn1.num_batches_tracked").item<std::int64_t>(), 1);
}

TEST(ModelDropout, does_not_depend_on_how_a_batch_is_split) {
  for (spec::Model spec : {small_gpt(), small_llama(), small_image(spec::Arch::kMnistCnn)}) {
    spec.dropout = 0.2;
    const auto model = build_model(spec, {.dtype = torch::kDouble});
    const auto [input, target] = batch_for(spec, 6);
    const ForwardContext context{.seed = 3, .step = 7, .first_index = 12};
    const double whole = model->loss(input, target, context).loss_sum.item<double>();
    double parts = 0;
    for (std::int64_t first = 0; first < 6; first += 2) {
      ForwardContext part = context;
      part.first_index += first;
      parts += model->loss(input.slice(0, first, first + 2), target.slice(0, first, first + 2), part)
                   .loss_sum.item<double>();
    }
    EXPECT_NEAR(whole, parts, 1e-9 * whole);
    ForwardContext next = context;
    next.step += 1;
    EXPECT_NE(whole, model->loss(input, target, next).loss_sum.item<double>());
    ForwardContext evaluation = context;
    evaluation.training = false;
    EXPECT_NE(whole, model->loss(input, target, evaluation).loss_sum.item<double>());
  }
}

TEST(Bf16, follows_fp32_within_its_precision) {
  for (const spec::Model& spec : every_small_model()) {
    const auto narrow = build_model(spec, {.dtype = torch::kBFloat16, .seed = 2});
    const auto wide = build_model(spec, {.dtype = torch::kFloat, .seed = 2});
    const auto [input, target] = batch_for(spec, 4);
    const LossResult a = narrow->loss(input, target, {}), b = wide->loss(input, target, {});
    EXPECT_EQ(a.loss_sum.scalar_type(), torch::kFloat);
    EXPECT_NEAR(a.loss_sum.item<double>() / b.loss_sum.item<double>(), 1.0, 0.03) << spec::to_string(spec.arch);
    a.loss_sum.backward();
    for (const auto& parameter : narrow->named_parameters()) {
      EXPECT_EQ(parameter.value().grad().scalar_type(), torch::kBFloat16) << parameter.key();
      EXPECT_TRUE(parameter.value().grad().isfinite().all().item<bool>()) << parameter.key();
    }
  }
}

TEST(EmptyBatch, loses_nothing) {
  for (const spec::Model& spec : every_small_model()) {
    const auto model = build_model(spec);
    const auto [input, target] = batch_for(spec, 2);
    const LossResult result = model->loss(input.slice(0, 0, 0), target.slice(0, 0, 0), {});
    EXPECT_EQ(result.count, 0);
    EXPECT_EQ(result.loss_sum.item<double>(), 0.0);
  }
}

TEST(Errors, name_the_problem_and_the_fix) {
  const auto model = build_model(small_gpt());
  const auto forward = [&](const Tensor& tokens) { return error_of([&] { model->forward(tokens, {}); }); };
  EXPECT_NE(forward(torch::full({1, 2}, 61, torch::kLong)).find("outside the model's vocabulary of 61"),
            std::string::npos);
  EXPECT_NE(forward(torch::zeros({1, 97}, torch::kLong)).find("longer than the model's 96 positions"),
            std::string::npos);
  spec::Model uneven = small_llama();
  uneven.kv_heads = 3;
  EXPECT_NE(error_of([&] { build_model(uneven); }).find("kv_heads"), std::string::npos);
}

TEST(LoadWeights, restores_a_model_with_or_without_the_prefix) {
  for (const spec::Model& spec : {small_gpt(), small_llama()}) {
    const auto source = build_model(spec, {.seed = 1});
    const std::string prefix = spec.arch == spec::Arch::kGpt ? "transformer." : "model.";
    TensorMap bare;
    for (const auto& [name, tensor] : state_dict(*source)) {
      bare.emplace(name.rfind(prefix, 0) == 0 ? name.substr(prefix.size()) : name, tensor);
    }
    for (const TensorMap& weights : {state_dict(*source), bare}) {
      const auto target = build_model(spec, {.seed = 2});
      load_weights(*target, weights, "weights");
      for (const auto& [name, tensor] : state_dict(*target)) EXPECT_TRUE(tensor.equal(state_dict(*source).at(name)));
    }
  }
}

TEST(LoadWeights, skips_what_hugging_face_stores_beside_weights) {
  const auto model = build_model(small_gpt());
  TensorMap weights = state_dict(*model);
  weights["transformer.h.0.attn.bias"] = torch::ones({1, 1, 96, 96});
  weights["lm_head.weight"] = weights.at("transformer.wte.weight");
  EXPECT_NO_THROW(load_weights(*model, weights, "weights"));
}

TEST(LoadWeights, refuses_missing_unexpected_and_misshaped_tensors_and_changes_nothing) {
  const auto model = build_model(small_gpt());
  const TensorMap good = state_dict(*build_model(small_gpt(), {.seed = 9}));
  const Tensor before = state_dict(*model).at("transformer.wte.weight").clone();
  const auto load = [&](const TensorMap& weights) {
    return error_of([&] { load_weights(*model, weights, "f.safetensors"); });
  };
  TensorMap missing = good, extra = good, wrong = good;
  missing.erase("transformer.ln_f.bias");
  extra["transformer.h.2.ln_1.weight"] = torch::ones({32});
  wrong["transformer.wpe.weight"] = torch::ones({32, 96});
  EXPECT_NE(load(missing).find("f.safetensors: missing tensors transformer.ln_f.bias"), std::string::npos);
  EXPECT_NE(load(extra).find("unexpected tensors transformer.h.2.ln_1.weight"), std::string::npos);
  EXPECT_NE(load(wrong).find("transformer.wpe.weight has shape [32, 96] but the model needs [96, 32]"),
            std::string::npos);
  EXPECT_TRUE(before.equal(state_dict(*model).at("transformer.wte.weight")));
}

}  // namespace
}  // namespace lockstep::nn
