// The differences between libtorch 1.13 and 2.x, all of them. Nothing else in the repository asks for the version.
#pragma once

#include <torch/types.h>
#include <torch/version.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#define LOCKSTEP_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace lockstep::nn::compat {

// softmax(q k^T / sqrt(head_dim), masked) v by libtorch's fused kernels, differentiable. All [batch, heads, rows,
// head_dim]. `seen` is bool, broadcast against [batch, heads, rows, rows], or undefined; not together with `causal`.
// 2.1 and later.
constexpr bool has_sdpa() { return LOCKSTEP_TORCH_AT_LEAST(2, 1); }
torch::Tensor sdpa(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v, const torch::Tensor& seen,
                   bool causal);

// weight * x / sqrt(mean(x^2) + epsilon) over the last dim, differentiable, statistics in fp32: one kernel each way
// where libtorch has it (CUDA, 2.9 and later), its parts in a row elsewhere.
torch::Tensor rms_norm(const torch::Tensor& x, const torch::Tensor& weight, double epsilon);

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

// Whether this libtorch was built with CUDA; whether it also finds a device.
bool built_with_cuda();
bool has_cuda();

// Blocks until the device has done everything that was queued on it; nothing to wait for on the CPU.
void synchronize(torch::Device device);

// Time between two points of the device's queue: events of the device where libtorch has them (2.4 and later), else the
// clock between two synchronisations. Not thread-safe.
class DeviceTimer {
 public:
  explicit DeviceTimer(torch::Device device);
  ~DeviceTimer();
  void start();
  double stop();  // seconds; blocks until the device has come here

 private:
  struct Events;
  torch::Device device_;
  std::unique_ptr<Events> events_;
  double started_ = 0;
};

// Bytes that tensors held on the device at most since the reset; 0 where libtorch does not say (before 2.9, on the
// CPU).
void reset_peak_allocated(torch::Device device);
double peak_allocated_bytes(torch::Device device);

// Products in bf16 while this lives, as torch.autocast(device, bfloat16) has them; nothing where `on` is false. Of the
// calling thread.
class AutocastScope {
 public:
  AutocastScope(bool on, torch::Device device);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  bool on_ = false;
  torch::Device device_;
};

// The type in which libtorch's allocator reports totals (c10::MemoryReportingInfoBase).
#if LOCKSTEP_TORCH_AT_LEAST(2, 1)
using ReportedTotal = std::size_t;
#else
using ReportedTotal = std::int64_t;
#endif

// targets[i] = sources[i], or += with `add`, dtypes may differ: in few launches where libtorch has it (2.4 and later on
// a device), one by one elsewhere.
void copy_all(const std::vector<torch::Tensor>& targets, const std::vector<torch::Tensor>& sources, bool add);

// Gives memory that libtorch keeps for later tensors back to the device (2.9 and later).
void release_cached_memory(torch::Device device);

// a [m, k] x b [n, k]^T in fp8 (e4m3) with unit scales, result in bf16; sizes are multiples of 16. CUDA, 2.5 and later.
constexpr bool has_fp8_product() { return LOCKSTEP_TORCH_AT_LEAST(2, 5); }
torch::Tensor to_fp8(const torch::Tensor& x);
torch::Tensor fp8_product(const torch::Tensor& a, const torch::Tensor& b, const torch::Tensor& unit_scale);

}  // namespace lockstep::nn::compat
