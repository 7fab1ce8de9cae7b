#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/engine/generate.h"
#include "lockstep/engine/metrics.h"

namespace lockstep::engine {
namespace {

torch::Tensor longs(const std::vector<std::int64_t>& values) { return torch::tensor(values, torch::kLong); }

TEST(ClassCounts, give_the_f1_of_each_class_and_their_mean) {
  ClassCounts counts;
  counts.add(longs({0, 0, 1, 1}), longs({0, 1, 1, -100}));
  counts.add(longs({2}), longs({0}));
  const nlohmann::json rows = counts.by_class();
  ASSERT_EQ(rows.size(), 3u) << "class 3 neither occurs nor is predicted: " << rows;
  EXPECT_DOUBLE_EQ(rows[0].at("f1"), 2.0 * 1 / (2 + 2));
  EXPECT_DOUBLE_EQ(rows[1].at("f1"), 2.0 * 1 / (1 + 2));
  EXPECT_DOUBLE_EQ(rows[2].at("f1"), 0.0);
  EXPECT_TRUE(rows[2].at("recall").is_null()) << "no target of that class";
  EXPECT_DOUBLE_EQ(counts.macro_f1(), (0.5 + 2.0 / 3 + 0.0) / 3);
  EXPECT_DOUBLE_EQ(counts.micro_f1(), 2.0 * 2 / (4 + 4));
  EXPECT_TRUE(std::isnan(ClassCounts().macro_f1()));
  EXPECT_TRUE(std::isnan(ClassCounts().micro_f1()));
}

TEST(ChooseToken, takes_the_likeliest_without_a_temperature) {
  const torch::Tensor logits = torch::tensor({0.5, 2.0, 1.9});
  EXPECT_EQ(choose_token(logits, {}, 0.99), 1);
  EXPECT_EQ(choose_token(logits, {.temperature = 1.0, .top_k = 1}, 0.99), 1);
}

TEST(ChooseToken, draws_by_the_softmax_of_the_kept_logits) {
  const torch::Tensor logits = torch::tensor({std::log(0.2), std::log(0.5), std::log(0.3)});
  const GenerateOptions all{.temperature = 1.0};
  EXPECT_EQ(choose_token(logits, all, 0.0), 1);
  EXPECT_EQ(choose_token(logits, all, 0.51), 2);
  EXPECT_EQ(choose_token(logits, all, 0.81), 0);
  EXPECT_EQ(choose_token(logits, {.temperature = 1.0, .top_k = 2}, 0.9), 2) << "0.5 / 0.8 and 0.3 / 0.8";
  EXPECT_EQ(choose_token(logits, {.temperature = 0.01}, 0.99), 1) << "cold";
}

TEST(Generate, goes_on_with_what_the_whole_forward_pass_makes_likeliest) {
  for (const char* arch : {"gpt", "llama"}) {
    spec::Model spec;
    spec.arch = std::string(arch) == "gpt" ? spec::Arch::kGpt : spec::Arch::kLlama;
    spec.layers = 2;
    spec.hidden = 16;
    spec.heads = spec.kv_heads = 2;
    spec.head_dim = 8;
    spec.ffn_hidden = 32;
    spec.vocab = 37;
    spec.max_sequence = 6;  // less than is generated: the window moves
    spec.bias = spec.arch == spec::Arch::kGpt;
    spec.init_std = 0.5;
    if (spec.arch == spec::Arch::kLlama) spec.activation = spec::Activation::kSilu;
    auto model = nn::build_model(spec, {.dtype = torch::kDouble, .seed = 3});
    std::vector<std::int64_t> ids = {5, 11};
    generate(dynamic_cast<nn::LanguageModel&>(*model), ids, {.tokens = 8}, [](std::int64_t) { return true; });
    ASSERT_EQ(ids.size(), 10u);
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 2; i < ids.size(); ++i) {
      const std::size_t first = i > 6 ? i - 6 : 0;
      const torch::Tensor seen =
          longs({ids.begin() + static_cast<std::ptrdiff_t>(first), ids.begin() + static_cast<std::ptrdiff_t>(i)});
      const torch::Tensor logits = model->forward(seen.unsqueeze(0), {.training = false});
      EXPECT_EQ(ids[i], logits[0][-1].argmax().item<std::int64_t>()) << arch << " at " << i;
    }
  }
}

TEST(Generate, ends_at_the_end_of_text_and_when_told_to) {
  spec::Model spec;
  spec.layers = 1;
  spec.hidden = 8;
  spec.heads = spec.kv_heads = 1;
  spec.head_dim = 8;
  spec.ffn_hidden = 16;
  spec.vocab = 11;
  spec.max_sequence = 8;
  spec.tied_embeddings = true;
  auto model = nn::build_model(spec, {.seed = 1});
  auto& language = dynamic_cast<nn::LanguageModel&>(*model);
  std::vector<std::int64_t> ids = {1};
  generate(language, ids, {.tokens = 5}, [](std::int64_t) { return false; });
  ASSERT_EQ(ids.size(), 2u) << "told to stop";
  std::vector<std::int64_t> ended = {1};
  generate(language, ended, {.tokens = 5, .end = ids[1]}, [](std::int64_t) { return true; });
  EXPECT_EQ(ended.size(), 1u);
}

}  // namespace
}  // namespace lockstep::engine
