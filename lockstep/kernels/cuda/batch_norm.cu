#include <algorithm>

#include "lockstep/kernels/cuda/batch_norm_common.cuh"

namespace lockstep::kernels::cuda {
namespace {

// Deviations from the first row are summed, not values: their squares do not cancel where the mean is large.
__global__ void __launch_bounds__(kNormThreads, kSlim) statistics_kernel(BatchNormStatistics a) {
  constexpr int kAhead = 4;
  float sums[2][kVector] = {};
  if (NormTile::channel() < a.channels) {
    float pivot[kVector];
    unpack(load(a.layer.x + NormTile::channel()), pivot);
    Vector x[kAhead];
    walk_rows<kAhead, From::kEnd>(
        a.rows, a.channels, [&](int k, unsigned place) { x[k] = load(vector_at(a.layer.x, place)); },
        [&](int k, unsigned) {
#pragma unroll
          for (int i = 0; i < kVector; ++i) {
            const float d = x[k][i] - pivot[i];
            sums[0][i] += d;
            sums[1][i] = fmaf(d, d, sums[1][i]);
          }
        });
  }
  sum_over_rows(sums, a.scratch, a.channels, [&](std::int64_t channel, const float(&totals)[2]) {
    const auto n = static_cast<float>(a.rows);
    const float pivot = __bfloat162float(a.layer.x[channel]), off = totals[0] / n;
    const float variance = fmaxf(totals[1] / n - off * off, 0.0f), mean = pivot + off;
    a.layer.mean[channel] = mean;
    a.layer.rstd[channel] = rsqrtf(variance + a.epsilon);
    if (a.running_mean != nullptr) {
      const float unbiased = a.rows > 1 ? variance * (n / (n - 1)) : variance;
      a.running_mean[channel] += a.momentum * (mean - a.running_mean[channel]);
      a.running_var[channel] += a.momentum * (unbiased - a.running_var[channel]);
    }
    if (a.batches != nullptr && channel == 0) ++*a.batches;
  });
}

enum class Added { kNothing, kValue, kNormed };

template <Added kAdded, bool kEven>
__global__ void __launch_bounds__(kNormThreads, kSlim) forward_kernel(BatchNormForward a) {
  constexpr int kAhead = 2;
  const std::int64_t c = NormTile::channel();
  if (c >= a.channels) return;
  const Affine own = affine_of(a.layer, c);
  Affine second{};
  if constexpr (kAdded == Added::kNormed) second = affine_of(a.other, c);
  const Bf16* const more = kAdded == Added::kNormed ? a.other.x : a.added;
  Vector x[kAhead], r[kAhead];
  const auto fetch = [&](int k, unsigned place) {
    x[k] = load_once(vector_at(a.layer.x, place));
    if constexpr (kAdded != Added::kNothing) r[k] = load_once(vector_at(more, place));
  };
  const auto use = [&](int k, unsigned place) {
    float f[kVector];
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      f[i] = fmaf(x[k][i], own.scale[i], own.shift[i]);
      if constexpr (kAdded == Added::kValue) f[i] += r[k][i];
      if constexpr (kAdded == Added::kNormed) f[i] += fmaf(r[k][i], second.scale[i], second.shift[i]);
      bits |= f[i] > 0.0f ? 1u << i : 0u;
      f[i] = f[i] < 0.0f ? 0.0f : f[i];  // NaN stays
    }
    const Vector y = pack(f);
    store(vector_at(a.y, place), y);
    if constexpr (kEven) {
      const unsigned even =
          even_place(place, static_cast<unsigned>(a.channels) / kVector, static_cast<unsigned>(a.width));
      if (even != kOdd) store(vector_at(a.even, even), y);
    }
    if constexpr (kAdded != Added::kNothing) a.mask[place] = static_cast<std::uint8_t>(bits);
  };
  walk_rows<kAhead, From::kFront>(a.rows, a.channels, fetch, use);
}

template <Added kAdded, bool kEven = false>
void launch_forward(const BatchNormForward& a, cudaStream_t stream) {
  forward_kernel<kAdded, kEven><<<norm_grid(a.rows, a.channels, kSlim), kNormThreads, 0, stream>>>(a);
  LOCKSTEP_CUDA_LAUNCHED();
}

}  // namespace

void check_batch_norm(std::int64_t rows, std::int64_t channels) {
  require(rows > 0, "batch_norm", "there are no rows");
  require(channels > 0 && channels % kVector == 0, "batch_norm", "channels must be a multiple of 8");
  require(rows * (channels / kVector) < kIndexLimit, "batch_norm", "the tensor is too large");
}

std::int64_t batch_norm_scratch_floats(std::int64_t channels) {
  constexpr std::int64_t kMostSums = 3;
  return batch_norm_tickets(channels) * norm_wave(channels, kSlim) * NormTile::kChannels * kMostSums;
}
std::int64_t batch_norm_tickets(std::int64_t channels) { return ceil_div(channels, NormTile::kChannels); }

void batch_norm_statistics(const BatchNormStatistics& a, cudaStream_t stream) {
  check_batch_norm(a.rows, a.channels);
  statistics_kernel<<<norm_grid(a.rows, a.channels, kSlim), kNormThreads, 0, stream>>>(a);
  LOCKSTEP_CUDA_LAUNCHED();
}

void batch_norm_forward(const BatchNormForward& a, cudaStream_t stream) {
  check_batch_norm(a.rows, a.channels);
  require(a.added == nullptr || a.other.x == nullptr, "batch_norm", "one thing is added, not two");
  const bool sum = a.added != nullptr || a.other.x != nullptr;
  require(a.even == nullptr || (sum && a.width % 2 == 0), "batch_norm", "a second copy needs a sum and an even width");
  if (a.even != nullptr && a.added != nullptr) return launch_forward<Added::kValue, true>(a, stream);
  if (a.even != nullptr) return launch_forward<Added::kNormed, true>(a, stream);
  if (a.other.x != nullptr) return launch_forward<Added::kNormed>(a, stream);
  if (a.added != nullptr) return launch_forward<Added::kValue>(a, stream);
  launch_forward<Added::kNothing>(a, stream);
}

}  // namespace lockstep::kernels::cuda
