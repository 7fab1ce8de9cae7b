// cuDNN's fused attention as libtorch binds it. Padding is a bias of one row per sample.
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward_cuda_dispatch.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_cuda_dispatch.h>
#include <c10/cuda/CUDAGuard.h>

#include <limits>
#include <mutex>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/nn/cuda/operators.h"

namespace lockstep::nn::cuda {
namespace {

using torch::Tensor;

// libtorch's kernels draw from the one generator of the device. Ranks may be threads on one GPU: seeding and drawing
// belong together. (The generator's own mutex is taken by the kernel's caller inside.)
template <typename Run>
auto with_seed(const Tensor& q, const AttentionInputs& in, const Run& run) {
  if (in.dropout == 0.0) return run();
  static std::mutex one_at_a_time;
  const std::scoped_lock lock(one_at_a_time);
  const at::Generator& generator = at::cuda::detail::getDefaultCUDAGenerator(q.device().index());
  {
    at::Generator handle = generator;
    const std::scoped_lock own(handle.mutex());
    handle.set_current_seed(in.seed);
  }
  return run();
}

// -inf for keys beyond a sample's length, [batch, 1, 1, keys]. A sample of length 0 sees its first key here and is
// cleared afterwards. Undefined where every key is seen.
std::optional<Tensor> hidden_bias(const AttentionInputs& in) {
  if (!in.lengths.defined()) return std::nullopt;
  constexpr std::int64_t kAlignment = 16;  // of a row, in elements: the kernel reads it in vectors
  const std::int64_t keys = in.k.size(1), padded = (keys + kAlignment - 1) / kAlignment * kAlignment;
  const Tensor key = torch::arange(padded, in.lengths.options());
  const Tensor hidden = key >= in.lengths.clamp_min(1).view({-1, 1, 1, 1});
  return torch::zeros({in.q.size(0), 1, 1, padded}, in.q.options())
      .masked_fill_(hidden, -std::numeric_limits<double>::infinity())
      .narrow(3, 0, keys);
}

Tensor seen_samples(const AttentionInputs& in) { return (in.lengths > 0).view({-1, 1, 1, 1}).to(in.q.scalar_type()); }

Tensor heads_first(const Tensor& t, std::int64_t group) {
  const Tensor first = t.transpose(1, 2);
  return group == 1 ? first : first.repeat_interleave(group, 1);
}

Tensor rows_first(const Tensor& t) { return t.transpose(1, 2).contiguous(); }

// Gradients of key heads that several query heads share.
Tensor summed_groups(const Tensor& gradient, std::int64_t group) {
  if (group == 1) return gradient;
  const auto s = gradient.sizes();
  return gradient.view({s[0], s[1] / group, group, s[2], s[3]}).sum(2);
}

}  // namespace

bool takes_attention(const Tensor& q) {
  return q.is_cuda() && (q.scalar_type() == torch::kBFloat16 || q.scalar_type() == torch::kHalf) && q.numel() > 0 &&
         q.size(-1) % 8 == 0 && q.size(-1) <= 128;
}

AttentionResult attention(const AttentionInputs& in) {
  LOCKSTEP_ASSERT(!(in.causal && in.lengths.defined()), "attention with lengths sees both ways");
  const c10::cuda::CUDAGuard guard(in.q.device());
  const std::int64_t group = in.q.size(2) / in.k.size(2);
  const auto result = with_seed(in.q, in, [&] {
    return at::cuda::_scaled_dot_product_cudnn_attention(heads_first(in.q, 1), heads_first(in.k, group),
                                                         heads_first(in.v, group), hidden_bias(in),
                                                         /*compute_log_sumexp=*/true, in.dropout, in.causal);
  });
  Tensor out = rows_first(std::get<0>(result));
  if (in.lengths.defined()) out *= seen_samples(in);
  return {out, std::get<1>(result), std::get<6>(result), std::get<7>(result)};
}

AttentionGradients attention_backward(const AttentionInputs& in, const AttentionResult& result, const Tensor& given) {
  const c10::cuda::CUDAGuard guard(in.q.device());
  const std::int64_t group = in.q.size(2) / in.k.size(2);
  const Tensor q = heads_first(in.q, 1), k = heads_first(in.k, group), v = heads_first(in.v, group);
  const Tensor dout = in.lengths.defined() ? given * seen_samples(in) : given;
  const auto [dq, dk, dv] = at::cuda::_scaled_dot_product_cudnn_attention_backward(
      heads_first(dout, 1), q, k, v, heads_first(result.out, 1), result.lse, result.philox_seed, result.philox_offset,
      hidden_bias(in).value_or(Tensor()), Tensor(), Tensor(), q.size(2), k.size(2), in.dropout, in.causal);
  return {rows_first(dq), rows_first(summed_groups(dk, group)), rows_first(summed_groups(dv, group))};
}

}  // namespace lockstep::nn::cuda
