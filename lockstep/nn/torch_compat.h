// The differences between libtorch 1.13 and 2.x, all of them. Nothing else in the repository asks for the version.
#pragma once

#include <torch/types.h>
#include <torch/version.h>

#include <cstdint>
#include <string>

#define LOCKSTEP_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace lockstep::nn::compat {

// softmax(q k^T / sqrt(head_dim), causal) v for any device and dtype, differentiable. All [batch, heads, seq,
// head_dim]. 2.x: libtorch's scaled_dot_product_attention. 1.13 lacks it: the textbook formula, which keeps the
// probabilities.
torch::Tensor causal_sdpa(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v);

// Whether matrix products of this dtype exist on the CPU (fp16 does not in 1.13).
constexpr bool cpu_has_matmul(torch::Dtype dtype) { return LOCKSTEP_TORCH_AT_LEAST(2, 1) || dtype != torch::kHalf; }

// Call before the first operation of the process (build_model and set_compute_threads do). Some hypervisors show AMX
// without the CPUID leaf that describes its tiles; oneDNN then configures empty tiles and a bf16 product dies of
// SIGILL, in plain PyTorch too. There this keeps oneDNN at AVX-512; elsewhere, or where ONEDNN_MAX_CPU_ISA is set, it
// does nothing.
void avoid_broken_amx();

// Threads that one operation of this process may use: libtorch's pool and, where it is a separate library, OpenBLAS's.
// (Debian's libtorch calls the system BLAS, whose pool ignores at::set_num_threads and defaults to every core.)
void set_compute_threads(int threads);

}  // namespace lockstep::nn::compat
