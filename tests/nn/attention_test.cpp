// Attention of a whole sequence on one rank against the textbook formula: values and the gradients of q, k and v.
#include "lockstep/nn/attention.h"

#include <gtest/gtest.h>

#include "lockstep/nn/torch_compat.h"
#include "tests/nn/attention_reference.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

class SafeProducts : public ::testing::Environment {
  void SetUp() override { compat::avoid_broken_amx(); }
};
const auto* const kSafeProducts = ::testing::AddGlobalTestEnvironment(new SafeProducts);

double difference_to_textbook(const AttentionShape& shape, const AttentionOptions& options,
                              torch::Dtype type = torch::kDouble, torch::Device device = torch::kCPU) {
  const Tensor weights = draw({shape.batch, shape.rows, shape.heads, shape.head_dim}, "weights").to(type);
  Tensors in = draw_qkv(shape);
  for (Tensor& t : in) t = t.to(device, type);
  AttentionOptions there = options;
  if (options.lengths.defined()) there.lengths = options.lengths.to(device);
  const Tensors ours = values_and_gradients([&](const Tensors& t) { return self_attention(t[0], t[1], t[2], there); },
                                            in, weights.to(device));
  for (Tensor& t : in) t = t.to(torch::kCPU, torch::kDouble);
  const Tensors textbook = values_and_gradients(
      [&](const Tensors& t) { return textbook_attention(t[0], t[1], t[2], options); }, in, weights.to(torch::kDouble));
  return worst_difference(ours, textbook);
}

AttentionOptions with(bool causal, double dropout = 0.0) {
  AttentionOptions options;
  options.causal = causal;
  options.dropout = dropout;
  options.site = {1, 2, 3, 4};
  return options;
}

class AttentionOfLength : public ::testing::TestWithParam<std::int64_t> {};
// 64 rows make a block: one row, part of a block, exactly one, several and a part.
INSTANTIATE_TEST_SUITE_P(Rows, AttentionOfLength, ::testing::Values(1, 2, 37, 64, 65, 200),
                         [](const auto& rows) { return std::to_string(rows.param); });

TEST_P(AttentionOfLength, equals_the_textbook_when_causal_with_grouped_queries) {
  EXPECT_LT(difference_to_textbook({GetParam(), 6, 2}, with(true)), 1e-12);
}

TEST_P(AttentionOfLength, equals_the_textbook_when_every_row_sees_all) {
  EXPECT_LT(difference_to_textbook({GetParam(), 6, 2}, with(false)), 1e-12);
}

TEST_P(AttentionOfLength, equals_the_textbook_with_dropout_of_a_later_tensor_parallel_rank) {
  for (const bool causal : {true, false}) {
    AttentionOptions options = with(causal, 0.3);
    options.first_head = 5;
    EXPECT_LT(difference_to_textbook({GetParam(), 4, 4}, options), 1e-12);
  }
}

TEST_P(AttentionOfLength, equals_the_textbook_in_a_window_of_any_size) {
  for (const std::int64_t window : {1, 5, 64, 70, 1000}) {
    AttentionOptions options = with(true);
    options.window = window;
    EXPECT_LT(difference_to_textbook({GetParam(), 6, 2}, options), 1e-12) << window;
    options.dropout = 0.3;
    EXPECT_LT(difference_to_textbook({GetParam(), 4, 4}, options), 1e-12) << window;
  }
}

TEST_P(AttentionOfLength, equals_the_textbook_with_capped_scores) {
  for (const std::int64_t window : {0, 9}) {
    AttentionOptions options = with(true);
    options.softcap = 0.7;  // most scores are larger
    options.window = window;
    EXPECT_LT(difference_to_textbook({GetParam(), 6, 2}, options), 1e-12) << window;
  }
}

TEST_P(AttentionOfLength, equals_the_textbook_on_a_packed_projection) {
  const std::int64_t rows = GetParam();
  const Tensor weights = draw({2, rows, 32}, "weights");
  const AttentionDropout dropout{0.2, {1, 2, 3, 4}, 8};
  AttentionOptions options = with(true, 0.2);
  options.first_head = 8;
  const Tensors in{draw({2, rows, 3 * 4 * 8}, "qkv")};
  const Tensors ours =
      values_and_gradients([&](const Tensors& t) { return causal_attention_packed(t[0], 4, dropout); }, in, weights);
  const Tensors textbook = values_and_gradients(
      [&](const Tensors& t) {
        const auto parts = t[0].view({2, rows, 3, 4, 8}).unbind(2);
        return textbook_attention(parts[0], parts[1], parts[2], options).reshape({2, rows, 32});
      },
      in, weights);
  EXPECT_LT(worst_difference(ours, textbook), 1e-12);
}

TEST(Attention, does_not_see_the_padding_of_shorter_samples) {
  for (const bool causal : {true, false}) {
    for (const double dropout : {0.0, 0.1}) {
      AttentionOptions options = with(causal, dropout);
      options.lengths = torch::tensor({150, 1, 63, 64, 97}, torch::kLong);
      EXPECT_LT(difference_to_textbook({150, 6, 3, 5}, options), 1e-12) << causal << dropout;
    }
  }
}

TEST(Attention, of_a_sample_that_is_all_padding_is_zero_with_zero_gradients) {
  AttentionOptions options = with(false);
  options.lengths = torch::tensor({70, 0}, torch::kLong);
  const Tensors results =
      values_and_gradients([&](const Tensors& t) { return self_attention(t[0], t[1], t[2], options); },
                           draw_qkv({70, 4, 2}), draw({2, 70, 4, 8}, "weights"));
  for (const Tensor& t : results) {
    EXPECT_EQ(t[1].abs().max().item<double>(), 0.0);
    EXPECT_GT(t[0].abs().max().item<double>(), 0.0);
  }
}

TEST(Attention, reads_any_strides) {
  const AttentionShape shape{70, 4, 2};
  const Tensors in = draw_qkv(shape);
  const Tensor weights = draw({2, 70, 4, 8}, "weights");
  const Tensors plain =
      values_and_gradients([](const Tensors& t) { return self_attention(t[0], t[1], t[2], {}); }, in, weights);
  // Heads before rows, and a last dim that is not dense.
  const Tensors strided = values_and_gradients(
      [](const Tensors& t) {
        const Tensor q = t[0].transpose(1, 2).contiguous().transpose(1, 2);
        const Tensor k = at::stack({t[1], t[1]}, -1).select(-1, 1);
        return self_attention(q, k, t[2], {});
      },
      in, weights);
  EXPECT_LT(worst_difference(strided, plain), 1e-14);
}

TEST(Attention, in_bf16_is_the_textbook_to_its_precision) {
  for (const bool causal : {true, false}) {
    for (const double dropout : {0.0, 0.1}) {
      AttentionOptions options = with(causal, dropout);
      EXPECT_LT(difference_to_textbook({70, 4, 2}, options, torch::kBFloat16), 0.03);
      options.lengths = torch::tensor({70, 33}, torch::kLong);
      EXPECT_LT(difference_to_textbook({70, 4, 2}, options, torch::kBFloat16), 0.03);
    }
  }
}

TEST(Attention, in_fp32_is_the_textbook_to_round_off) {
  EXPECT_LT(difference_to_textbook({200, 6, 2}, with(true, 0.1), torch::kFloat), 1e-5);
}

TEST(AttentionOnGpu, equals_the_textbook) {
  if (!compat::has_cuda()) GTEST_SKIP() << "no GPU here";
  for (const bool causal : {true, false}) {
    for (const double dropout : {0.0, 0.1}) {
      AttentionOptions options = with(causal, dropout);
      EXPECT_LT(difference_to_textbook({200, 6, 2}, options, torch::kDouble, torch::kCUDA), 1e-12);
      EXPECT_LT(difference_to_textbook({200, 6, 2}, options, torch::kBFloat16, torch::kCUDA), 0.03);
      options.lengths = torch::tensor({200, 33}, torch::kLong);
      EXPECT_LT(difference_to_textbook({200, 6, 2}, options, torch::kDouble, torch::kCUDA), 1e-12);
      EXPECT_LT(difference_to_textbook({200, 6, 2}, options, torch::kBFloat16, torch::kCUDA), 0.03);
    }
  }
}

}  // namespace
}  // namespace lockstep::nn
