#include "lockstep/nn/torch_compat.h"

#include <ATen/Parallel.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
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
#if defined(__x86_64__)
  constexpr unsigned kFeatures = 7, kTiles = 0x1d, kAmxTileBit = 1u << 24;
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool has_amx = __get_cpuid_count(kFeatures, 0, &a, &b, &c, &d) != 0 && (d & kAmxTileBit) != 0;
  if (!has_amx || (__get_cpuid_count(kTiles, 0, &a, &b, &c, &d) != 0 && a != 0)) return;  // a: the highest palette
  // oneDNN reads one of the two once, at its first use.
  if (!std::getenv("DNNL_MAX_CPU_ISA")) setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16", /*overwrite=*/0);
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
