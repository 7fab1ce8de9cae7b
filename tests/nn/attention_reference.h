// What the tests of attention share: the textbook formula, inputs, and comparison of values and gradients.
#pragma once

#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lockstep/nn/attention.h"
#include "lockstep/nn/random.h"

namespace lockstep::nn {

inline torch::Tensor draw(const std::vector<std::int64_t>& shape, const char* name) {
  torch::Tensor tensor = torch::empty(shape, torch::dtype(torch::kDouble));
  fill_normal(tensor, 0.0, 1.0, stream_key(7, name));
  return tensor;
}

struct AttentionShape {
  std::int64_t rows = 0;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t batch = 2;
  std::int64_t head_dim = 8;
};

// q, k and v in fp64.
inline std::vector<torch::Tensor> draw_qkv(const AttentionShape& s) {
  return {draw({s.batch, s.rows, s.heads, s.head_dim}, "q"), draw({s.batch, s.rows, s.kv_heads, s.head_dim}, "k"),
          draw({s.batch, s.rows, s.kv_heads, s.head_dim}, "v")};
}

// Scores, softmax, dropout, product, of a whole sequence with the key heads repeated; libtorch's own gradients. Masks
// are drawn for all heads up to the last and cut.
inline torch::Tensor textbook_attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                                        const AttentionOptions& options) {
  using torch::Tensor;
  const std::int64_t group = q.size(2) / k.size(2), rows = q.size(1);
  const Tensor qh = q.transpose(1, 2);
  const Tensor kh = k.transpose(1, 2).repeat_interleave(group, 1), vh = v.transpose(1, 2).repeat_interleave(group, 1);
  Tensor hidden = torch::zeros({rows, rows}, torch::kBool);
  if (options.causal) hidden = torch::ones({rows, rows}, torch::kBool).triu(1);
  if (options.window > 0) {
    hidden = hidden | (torch::arange(rows).unsqueeze(1) - torch::arange(rows) >= options.window);
  }
  if (options.lengths.defined()) hidden = hidden | (torch::arange(rows) >= options.lengths.view({-1, 1, 1, 1}));
  Tensor scores = at::matmul(qh, kh.transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3)));
  if (options.softcap > 0) scores = at::tanh(scores / options.softcap) * options.softcap;
  scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  Tensor probabilities = at::softmax(scores, -1);
  if (options.dropout > 0) {
    const std::int64_t heads = options.first_head + q.size(2), row_elements = (rows + 3) / 4 * 4;
    probabilities = probabilities * dropout_multipliers({q.size(0), heads, rows, row_elements}, q.options(),
                                                        options.dropout, options.site)
                                        .slice(1, options.first_head)
                                        .slice(3, 0, rows);
  }
  return at::matmul(probabilities, vh).transpose(1, 2);
}

// The output and the gradients of sum(output x weights) for each input.
template <typename Function>
std::vector<torch::Tensor> values_and_gradients(const Function& function, const std::vector<torch::Tensor>& inputs,
                                                const torch::Tensor& weights) {
  std::vector<torch::Tensor> leaves;
  for (const torch::Tensor& input : inputs) leaves.push_back(input.detach().clone().requires_grad_(true));
  const torch::Tensor out = function(leaves);
  std::vector<torch::Tensor> results = torch::autograd::grad({(out * weights).sum()}, leaves);
  results.insert(results.begin(), out.detach());
  return results;
}

// The largest difference, relative to each tensor's largest value; NaN counts as infinite.
inline double worst_difference(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    if (a[i].sizes() != b[i].sizes()) return std::numeric_limits<double>::infinity();
    const double scale = b[i].abs().max().item<double>();
    const double difference =
        (a[i].to(torch::kCPU, torch::kDouble) - b[i]).abs().max().item<double>() / (scale > 0 ? scale : 1.0);
    if (!(difference <= worst)) worst = std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
  }
  return worst;
}

}  // namespace lockstep::nn
