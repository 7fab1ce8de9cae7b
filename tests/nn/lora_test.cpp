#include "lockstep/nn/lora.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/nn/hf_weights.h"
#include "small_models.h"
#include "split_model.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;
using namespace testing;

struct Adapted {
  spec::Model spec;
  spec::Lora lora;
};

spec::Model classified(spec::Model spec) {
  spec.classes = 3;
  return spec;
}

spec::Model with_one_key_head(spec::Model spec) {
  spec.heads = 8;
  spec.head_dim = 4;
  spec.kv_heads = 1;  // fewer than the ranks: key heads are shared by neighbours
  return spec;
}

spec::Model small_mixtral() {
  spec::Model spec = small_llama();
  spec.name = "small-mixtral";
  spec.arch = spec::Arch::kMoe;
  spec.experts = 4;
  spec.experts_per_token = 2;
  return spec;
}

// Every target that the architectures have: layers cut by outputs, by inputs, held whole, and shared key heads.
std::vector<Adapted> every_adapted_model() {
  const std::vector<std::string> llama{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
  return {{small_gpt(), {3, 6, {"c_attn", "c_proj", "c_fc"}}},
          {classified(small_gpt()), {2, 16, {"c_attn"}}},
          {small_llama(), {3, 4, {"q_proj", "v_proj"}}},
          {small_llama(), {4, 8, llama}},
          {with_one_key_head(small_llama()), {2, 4, llama}},
          {small_mixtral(), {2, 4, {"q_proj", "w1", "w2", "w3"}}},
          {small_mamba(), {3, 6, {"in_proj", "x_proj", "out_proj"}}},
          {small_mamba(), {3, 6, {"out_proj"}}},
          {small_bert(), {3, 6, {"query", "value", "key", "dense"}}},
          {classified(small_bert()), {3, 6, {"query", "attention.output.dense", "pooler.dense"}}}};
}

std::shared_ptr<LanguageModel> language_model(const spec::Model& spec) {
  return std::dynamic_pointer_cast<LanguageModel>(build_model(spec, {.dtype = torch::kDouble, .seed = 4}));
}

std::shared_ptr<LanguageModel> adapted_model(const Adapted& adapted) {
  auto model = language_model(adapted.spec);
  add_lora(*model, adapted.lora);
  initialise(*model, 4);
  return model;
}

Batch batch_of(const spec::Model& spec) {
  const auto [tokens, target] = batch_for(spec, 2);
  return {tokens, target};
}

TEST(Lora, starts_at_the_model_as_it_was) {
  for (const Adapted& adapted : every_adapted_model()) {
    const Tensor tokens = batch_of(adapted.spec).tokens;
    const Tensor before = language_model(adapted.spec)->forward(tokens, {.training = false});
    const auto model = adapted_model(adapted);
    expect_near(model->forward(tokens, {.training = false}), before, 1e-13, adapted.spec.name);
    shake(*model);
    EXPECT_GT((model->forward(tokens, {.training = false}) - before).abs().max().item<double>(), 1e-3);
  }
}

TEST(Lora, trains_its_matrices_and_a_classifier_only) {
  for (const Adapted& adapted : every_adapted_model()) {
    const auto model = adapted_model(adapted);
    shake(*model);
    const Batch batch = batch_of(adapted.spec);
    model->loss(batch.tokens, batch.target, {}).loss_sum.backward();
    std::set<std::string> trained;
    for (const auto& entry : model->named_parameters()) {
      const bool classifier = entry.key().rfind("score.", 0) == 0 || entry.key().rfind("classifier.", 0) == 0;
      EXPECT_EQ(entry.value().grad().defined(), is_lora_name(entry.key()) || classifier) << entry.key();
      if (!entry.value().grad().defined()) continue;
      EXPECT_GT(entry.value().grad().abs().max().item<double>(), 0) << entry.key();
      trained.insert(entry.key());
    }
    EXPECT_FALSE(trained.empty());
  }
}

TEST(Lora, has_the_names_and_shapes_of_peft) {
  const auto model = adapted_model({small_gpt(), {3, 6, {"c_attn"}}});
  std::map<std::string, std::vector<std::int64_t>> sizes;
  for (const auto& entry : model->named_parameters()) {
    if (is_lora_name(entry.key())) sizes[entry.key()] = entry.value().sizes().vec();
  }
  const std::map<std::string, std::vector<std::int64_t>> expected{
      {"transformer.h.0.attn.c_attn.lora_A.weight", {3, 32}},
      {"transformer.h.0.attn.c_attn.lora_B.weight", {96, 3}},
      {"transformer.h.1.attn.c_attn.lora_A.weight", {3, 32}},
      {"transformer.h.1.attn.c_attn.lora_B.weight", {96, 3}}};
  EXPECT_EQ(sizes, expected);
}

TEST(Lora, draws_a_like_torch_and_leaves_b_at_zero) {
  const auto model = adapted_model({small_llama(), {8, 16, {"q_proj"}}});
  const TensorMap state = state_dict(*model);
  const Tensor a = state.at("model.layers.1.self_attn.q_proj.lora_A.weight");
  EXPECT_LE(a.abs().max().item<double>(), 1 / std::sqrt(32.0));
  EXPECT_GT(a.abs().max().item<double>(), 0.95 / std::sqrt(32.0));
  EXPECT_EQ(state.at("model.layers.1.self_attn.q_proj.lora_B.weight").abs().max().item<double>(), 0);
}

// W + alpha / rank B A, written out on the weights of a model without adapters.
TEST(Lora, computes_the_formula_of_the_paper) {
  const Adapted adapted{small_llama(), {3, 12, {"q_proj", "down_proj"}}};
  const auto model = adapted_model(adapted);
  shake(*model);
  TensorMap sums;
  const TensorMap state = state_dict(*model);
  for (const auto& [name, tensor] : state) {
    if (!is_lora_name(name)) sums.emplace(name, tensor.detach().clone());
  }
  for (const std::string layer : {"0", "1"}) {
    for (const std::string target : {"self_attn.q_proj", "mlp.down_proj"}) {
      const std::string name = "model.layers." + layer + "." + target;
      sums.at(name + ".weight") += 4.0 * state.at(name + ".lora_B.weight").mm(state.at(name + ".lora_A.weight"));
    }
  }
  const auto plain = language_model(adapted.spec);
  load_weights(*plain, sums, "sums");
  const Tensor tokens = batch_of(adapted.spec).tokens;
  expect_near(model->forward(tokens, {.training = false}), plain->forward(tokens, {.training = false}), 1e-12,
              "logits");
}

// Every adapter's product added to its weight, and the adapter removed.
void merge(LanguageModel& model) {
  for (const auto& module : model.modules()) {
    auto* layer = dynamic_cast<Linear*>(module.get());
    if (layer == nullptr || layer->plain()) continue;
    add_low_rank(layer->weight, layer->lora->a->weight, layer->lora->b->weight, layer->lora->scale, layer->layout());
    layer->unregister_module("lora_A");
    layer->unregister_module("lora_B");
    layer->lora.reset();
  }
}

TEST(Lora, merged_gives_the_same_logits_and_the_parameters_of_the_model_alone) {
  for (const Adapted& adapted : every_adapted_model()) {
    const auto model = adapted_model(adapted);
    shake(*model);
    const Tensor tokens = batch_of(adapted.spec).tokens;
    const Tensor before = model->forward(tokens, {.training = false});
    merge(*model);
    expect_near(model->forward(tokens, {.training = false}), before, 1e-12, adapted.spec.name);
    std::set<std::string> names, expected;
    for (const auto& [name, tensor] : state_dict(*model)) names.insert(name);
    for (const auto& [name, tensor] : state_dict(*language_model(adapted.spec))) expected.insert(name);
    EXPECT_EQ(names, expected);
  }
}

TEST(Lora, on_several_ranks_equals_one) {
  for (const Adapted& adapted : every_adapted_model()) {
    const auto prepare = [&](LanguageModel& model) {
      add_lora(model, adapted.lora);
      initialise(model, 4);
      shake(model);
    };
    const Batch batch = batch_of(adapted.spec);
    const Outcome one = run_split(adapted.spec, {}, batch, prepare);
    EXPECT_FALSE(one.gradients.empty());
    std::vector<Split> splits{{.tp = 2}, {.tp = 2, .sequence_parallel = true}};
    if (adapted.spec.heads == 4) splits.push_back({.tp = 4});
    const bool routed = adapted.spec.experts > 0;
    if (adapted.spec.classes == 0 && !routed) splits.push_back({.tp = 2, .cp = 2, .sequence_parallel = true});
    for (const Split& split : splits) {
      expect_same(run_split(adapted.spec, split, batch, prepare), one, 1e-11,
                  adapted.spec.name + " on " + split.name());
    }
    const auto merged = [&](LanguageModel& model) {
      prepare(model);
      merge(model);
      for (const DeclaredParameter& parameter : declared_parameters(model)) {
        Tensor(parameter.tensor).requires_grad_(true);
      }
    };
    expect_near(run_split(adapted.spec, {.tp = 2}, batch, merged).logits, one.logits, 1e-11, "merged on two ranks");
  }
}

TEST(Lora, refuses_targets_that_the_model_does_not_have) {
  const auto model = language_model(small_llama());
  for (const char* target : {"c_attn", "lm_head", "proj"}) {
    try {
      add_lora(*model, {4, 8, {"q_proj", target}});
      ADD_FAILURE() << target;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(std::string("no linear layer ") + target), std::string::npos);
    }
  }
}

TEST(Lora, keeps_its_matrices_when_weights_are_loaded) {
  const Adapted adapted{small_llama(), {3, 12, {"q_proj"}}};
  const auto model = adapted_model(adapted);
  shake(*model);
  const std::string name = "model.layers.0.self_attn.q_proj.";
  const Tensor a = state_dict(*model).at(name + "lora_A.weight").detach().clone();
  const TensorMap file = state_dict(*language_model(adapted.spec));
  load_weights(*model, file, "file");
  EXPECT_TRUE(state_dict(*model).at(name + "lora_A.weight").equal(a));
  EXPECT_TRUE(state_dict(*model).at(name + "weight").equal(file.at(name + "weight")));
}

}  // namespace
}  // namespace lockstep::nn
