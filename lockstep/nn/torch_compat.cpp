#include "lockstep/nn/torch_compat.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <cmath>
#include <cstdlib>
#include <limits>

namespace lockstep::nn::compat {

torch::Tensor causal_sdpa(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v) {
#if LOCKSTEP_TORCH_AT_LEAST(2, 1)
  return at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
#else
  const std::int64_t seq = q.size(2);
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(3)));
  const auto mask = torch::ones({seq, seq}, q.options().dtype(torch::kBool)).triu_(1);
  auto scores = at::matmul(q * scale, k.transpose(2, 3));
  scores = scores.masked_fill(mask, -std::numeric_limits<float>::infinity());
  return at::matmul(at::softmax(scores, -1), v);
#endif
}

void avoid_broken_amx() {
#if !LOCKSTEP_TORCH_AT_LEAST(2, 1)
  setenv("DNNL_MAX_CPU_ISA", "AVX512_CORE_BF16", /*overwrite=*/0);  // read by oneDNN once, at its first use
#endif
}

void set_compute_threads(int threads) {
  avoid_broken_amx();
  at::set_num_threads(threads);
  using SetThreads = void (*)(int);
  // RTLD_DEFAULT looks in this library's own scope too, so this also works inside a library opened with RTLD_LOCAL.
  if (auto set_openblas = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads"))) {
    set_openblas(threads);
  }
}

}  // namespace lockstep::nn::compat
