// Expected figures are worked out by hand or taken from publications, never by the code under test.
#include "lockstep/cost/flops.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::cost {
namespace {

TEST(Flops, of_gpt2_124m_on_one_sequence) {
  // Per token and layer, multiply-adds: qkv 768x2304, output 768x768, MLP 2 x 768x3072 = 7,077,888; 12 layers; head
  // 768x50257 = 38,597,376; two FLOPs each: 247,064,064; x 1024 tokens = 252,993,601,536.
  // Causal attention: 2 x 12 heads x 1024^2 x 64 x 12 layers = 19,327,352,832.
  const spec::Model model = spec::load_model("gpt2-124m");
  EXPECT_DOUBLE_EQ(forward_flops(model, 1, 1024), 252993601536.0 + 19327352832.0);
  EXPECT_DOUBLE_EQ(training_flops(model, 1, 1024), 3 * (252993601536.0 + 19327352832.0));
}

TEST(Flops, grow_linearly_in_samples_and_attention_with_the_square_of_the_sequence) {
  const spec::Model model = spec::load_model("gpt2-124m");
  EXPECT_DOUBLE_EQ(forward_flops(model, 6, 512), 6 * forward_flops(model, 1, 512));
  const double longer = forward_flops(model, 1, 1024) - 2 * forward_flops(model, 1, 512);
  EXPECT_DOUBLE_EQ(longer, 19327352832.0 / 2);  // what is left of the attention of two half sequences
}

TEST(Flops, of_llama_count_grouped_keys_and_three_mlp_products) {
  // llama3-8b, one token of a sequence of one: q and o 4096x4096, k and v 4096x1024, MLP 3 x 4096x14336; 32 layers;
  // head 4096x128256: 2 x (32 x (2 x 16,777,216 + 2 x 4,194,304 + 176,160,768) + 525,336,576) = 15,009,316,864.
  // Attention over one position: 2 x 32 heads x 128 x 32 layers = 262,144.
  EXPECT_DOUBLE_EQ(forward_flops(spec::load_model("llama3-8b"), 1, 1), 15009316864.0 + 262144.0);
}

TEST(Flops, of_the_mnist_network) {
  // Multiply-adds per image: 26^2 x 32 x 9 + 24^2 x 64 x 288 + 9216 x 128 + 128 x 10 = 11,992,448. The first
  // convolution needs no gradient of its input.
  const spec::Model model = spec::load_model("mnist-cnn");
  EXPECT_DOUBLE_EQ(forward_flops(model, 1, 0), 2.0 * 11992448);
  EXPECT_DOUBLE_EQ(training_flops(model, 1, 0), 3 * 2.0 * 11992448 - 2.0 * 194688);
}

TEST(Flops, of_resnets_equal_the_published_multiply_adds) {
  // torchvision's model cards: resnet18 1.81, resnet50 4.09 billion multiply-adds at 224 x 224.
  EXPECT_NEAR(forward_flops(spec::load_model("resnet18"), 1, 0) / 2e9, 1.814, 0.001);
  EXPECT_NEAR(forward_flops(spec::load_model("resnet50"), 1, 0) / 2e9, 4.089, 0.001);
}

TEST(Flops, mfu_counts_the_head_but_not_the_input_embedding) {
  // gpt2-124m: 124,439,808 parameters less 1024 x 768 positions (the tied table is the head): 123,653,376.
  // 6 x 123,653,376 + 6 x 12 x 768 x 1024 = 798,543,360.
  const spec::Model model = spec::load_model("gpt2-124m");
  EXPECT_DOUBLE_EQ(mfu_flops_per_token(model, 1024), 798543360.0);
  EXPECT_DOUBLE_EQ(mfu(model, 1024, 1000.0, 8, 1e12), 1000.0 * 798543360.0 / 8e12);
  EXPECT_EQ(mfu(model, 1024, 1000.0, 8, 0), 0);
}

TEST(Flops, architectures_without_a_price_are_a_clear_no) {
  try {
    list_operators(spec::load_model("mamba-130m"), 1, 128);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kAnswerIsNo);
    EXPECT_NE(std::string(error.what()).find("mamba"), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep::cost
