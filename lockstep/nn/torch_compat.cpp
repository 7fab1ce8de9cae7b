#include "lockstep/nn/torch_compat.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <dlfcn.h>
#include <torch/cuda.h>
#if LOCKSTEP_TORCH_AT_LEAST(2, 4)
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#endif
#if LOCKSTEP_TORCH_AT_LEAST(2, 9)
#include <c10/core/CachingDeviceAllocator.h>
#endif

#include <cstdlib>
#include <optional>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"

namespace lockstep::nn::compat {

#if LOCKSTEP_TORCH_AT_LEAST(2, 1)
torch::Tensor sdpa(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v, const torch::Tensor& seen,
                   bool causal) {
  const auto mask = seen.defined() ? std::optional<torch::Tensor>(seen) : std::nullopt;
  return at::scaled_dot_product_attention(q, k, v, mask, /*dropout_p=*/0.0, causal);
}
#else
torch::Tensor sdpa(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&, const torch::Tensor&, bool) {
  throw InternalError("this libtorch has no fused attention");
}
#endif

torch::Tensor rms_norm(const torch::Tensor& x, const torch::Tensor& weight, double epsilon) {
#if LOCKSTEP_TORCH_AT_LEAST(2, 9)
  if (x.is_cuda()) return at::rms_norm(x, {x.size(-1)}, weight, epsilon);
#endif
  const torch::Tensor wide = x.to(torch::kFloat);
  return weight * (wide * at::rsqrt(wide.square().mean({-1}, true) + epsilon)).to(x.scalar_type());
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

bool built_with_cuda() {
#ifdef LOCKSTEP_TORCH_HAS_CUDA
  return true;
#else
  return false;
#endif
}

bool has_cuda() { return built_with_cuda() && torch::cuda::is_available(); }

void synchronize(torch::Device device) {
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
}

#if LOCKSTEP_TORCH_AT_LEAST(2, 4)
struct DeviceTimer::Events {
  explicit Events(torch::Device device)
      : guard(device.type()),
        stream(guard.getStream(device)),
        begin(device.type(), c10::EventFlag::BACKEND_DEFAULT),
        end(device.type(), c10::EventFlag::BACKEND_DEFAULT) {}

  c10::impl::VirtualGuardImpl guard;
  c10::Stream stream;
  c10::Event begin, end;
};
#else
struct DeviceTimer::Events {
  explicit Events(torch::Device) {}
};
#endif

DeviceTimer::DeviceTimer(torch::Device device) : device_(device) {
  if (!device.is_cpu()) events_ = std::make_unique<Events>(device);
}

DeviceTimer::~DeviceTimer() = default;

void DeviceTimer::start() {
#if LOCKSTEP_TORCH_AT_LEAST(2, 4)
  if (events_) return events_->begin.record(events_->stream);
#endif
  synchronize(device_);
  started_ = monotonic_seconds();
}

double DeviceTimer::stop() {
#if LOCKSTEP_TORCH_AT_LEAST(2, 4)
  if (events_) {
    events_->end.record(events_->stream);
    events_->end.synchronize();
    return events_->begin.elapsedTime(events_->end) / 1e3;
  }
#endif
  synchronize(device_);
  return monotonic_seconds() - started_;
}

void reset_peak_allocated([[maybe_unused]] torch::Device device) {
#if LOCKSTEP_TORCH_AT_LEAST(2, 9)
  if (!device.is_cpu()) c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
#endif
}

double peak_allocated_bytes([[maybe_unused]] torch::Device device) {
#if LOCKSTEP_TORCH_AT_LEAST(2, 9)
  if (device.is_cpu()) return 0;
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return static_cast<double>(stats.allocated_bytes[0].peak);  // 0: of all pools together
#else
  return 0;
#endif
}

void copy_all(const std::vector<torch::Tensor>& targets, const std::vector<torch::Tensor>& sources, bool add) {
#if LOCKSTEP_TORCH_AT_LEAST(2, 4)
  if (!targets.empty() && !targets.front().is_cpu() && !add) return at::_foreach_copy_(targets, sources);
#endif
  for (std::size_t i = 0; i < targets.size(); ++i) {
    torch::Tensor target = targets[i];
    add ? target.add_(sources[i]) : target.copy_(sources[i]);
  }
}

// libtorch 1.13 has a switch for each kind of device, 2.4 and later one for all.
AutocastScope::AutocastScope(bool on, torch::Device device) : on_(on), device_(device) {
  if (!on_) return;
  at::autocast::increment_nesting();
#if LOCKSTEP_TORCH_AT_LEAST(2, 4)
  at::autocast::set_autocast_dtype(device_.type(), torch::kBFloat16);
  at::autocast::set_autocast_enabled(device_.type(), true);
#else
  if (device_.is_cpu()) {
    at::autocast::set_autocast_cpu_dtype(torch::kBFloat16);
    at::autocast::set_cpu_enabled(true);
  } else {
    at::autocast::set_autocast_gpu_dtype(torch::kBFloat16);
    at::autocast::set_enabled(true);
  }
#endif
}

AutocastScope::~AutocastScope() {
  if (!on_) return;
#if LOCKSTEP_TORCH_AT_LEAST(2, 4)
  at::autocast::set_autocast_enabled(device_.type(), false);
#else
  device_.is_cpu() ? at::autocast::set_cpu_enabled(false) : at::autocast::set_enabled(false);
#endif
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
}

void release_cached_memory([[maybe_unused]] torch::Device device) {
#if LOCKSTEP_TORCH_AT_LEAST(2, 9)
  if (!device.is_cpu()) c10::getDeviceAllocator(device.type())->emptyCache();
#endif
}

#if LOCKSTEP_TORCH_AT_LEAST(2, 5)
torch::Tensor to_fp8(const torch::Tensor& x) { return x.to(c10::ScalarType::Float8_e4m3fn); }

torch::Tensor fp8_product(const torch::Tensor& a, const torch::Tensor& b, const torch::Tensor& unit_scale) {
  return at::_scaled_mm(a, b.t(), unit_scale, unit_scale, /*bias=*/{}, /*scale_result=*/{}, torch::kBFloat16,
                        /*use_fast_accum=*/true);
}
#else
torch::Tensor to_fp8(const torch::Tensor&) { throw InternalError("this libtorch has no fp8"); }
torch::Tensor fp8_product(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&) {
  throw InternalError("this libtorch has no fp8 product");
}
#endif

}  // namespace lockstep::nn::compat
