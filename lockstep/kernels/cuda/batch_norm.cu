#include <algorithm>

#include "lockstep/kernels/cuda/batch_norm_common.cuh"

namespace lockstep::kernels::cuda {
namespace {

// Deviations from the first row are summed, not values: their squares do not cancel where the mean is large.
__global__ void __launch_bounds__(kNormThreads, kNormBlocksPerMultiprocessor) statistics_kernel(BatchNormStatistics a) {
  using Tile = NormTile;
  const std::int64_t c = Tile::channel(), stride = Tile::stride();
  float sums[2][kVector] = {};
  if (c < a.channels) {
    float pivot[kVector];
    unpack(load(a.layer.x + c), pivot);
    const auto add = [&](const Vector& v) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float d = v[i] - pivot[i];
        sums[0][i] += d;
        sums[1][i] = fmaf(d, d, sums[1][i]);
      }
    };
    std::int64_t row = a.rows - 1 - Tile::first_row();
    for (; row - (kRowsInFlight - 1) * stride >= 0; row -= kRowsInFlight * stride) {
      Vector v[kRowsInFlight];
#pragma unroll
      for (int k = 0; k < kRowsInFlight; ++k) v[k] = load(a.layer.x + (row - k * stride) * a.channels + c);
#pragma unroll
      for (int k = 0; k < kRowsInFlight; ++k) add(v[k]);
    }
    for (; row >= 0; row -= stride) add(load(a.layer.x + row * a.channels + c));
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

template <Added kAdded>
__global__ void __launch_bounds__(kNormThreads, kNormBlocksPerMultiprocessor) forward_kernel(BatchNormForward a) {
  using Tile = NormTile;
  const std::int64_t c = Tile::channel(), stride = Tile::stride();
  if (c >= a.channels) return;
  constexpr int kAhead = kAdded == Added::kNothing ? 4 : 2;
  const Affine own = affine_of(a.layer, c);
  Affine second{};
  if constexpr (kAdded == Added::kNormed) second = affine_of(a.other, c);
  const Bf16* const more = kAdded == Added::kNormed ? a.other.x : a.added;
  const auto write = [&](std::int64_t place, const Vector& x, const Vector& r) {
    float f[kVector];
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      f[i] = fmaf(x[i], own.scale[i], own.shift[i]);
      if constexpr (kAdded == Added::kValue) f[i] += r[i];
      if constexpr (kAdded == Added::kNormed) f[i] += fmaf(r[i], second.scale[i], second.shift[i]);
      bits |= f[i] > 0.0f ? 1u << i : 0u;
      f[i] = f[i] < 0.0f ? 0.0f : f[i];  // NaN stays
    }
    store(a.y + place, pack(f));
    if constexpr (kAdded != Added::kNothing) a.mask[place / kVector] = static_cast<std::uint8_t>(bits);
  };
  std::int64_t row = Tile::first_row();
  for (; row + (kAhead - 1) * stride < a.rows; row += kAhead * stride) {
    Vector x[kAhead], r[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const std::int64_t place = (row + k * stride) * a.channels + c;
      x[k] = load(a.layer.x + place);
      if constexpr (kAdded != Added::kNothing) r[k] = load(more + place);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) write((row + k * stride) * a.channels + c, x[k], r[k]);
  }
  for (; row < a.rows; row += stride) {
    const std::int64_t place = row * a.channels + c;
    Vector r{};
    if constexpr (kAdded != Added::kNothing) r = load(more + place);
    write(place, load(a.layer.x + place), r);
  }
}

template <Added kAdded>
void launch_forward(const BatchNormForward& a, cudaStream_t stream) {
  forward_kernel<kAdded><<<norm_grid(a.rows, a.channels), kNormThreads, 0, stream>>>(a);
  LOCKSTEP_CUDA_LAUNCHED();
}

}  // namespace

void check_batch_norm(std::int64_t rows, std::int64_t channels) {
  require(rows > 0, "batch_norm", "there are no rows");
  require(channels > 0 && channels % kVector == 0, "batch_norm", "channels must be a multiple of 8");
}

std::int64_t batch_norm_scratch_floats(std::int64_t channels) {
  constexpr std::int64_t kMostSums = 3;
  const std::int64_t tile = kLanes * kVector, across = ceil_div(channels, tile);
  const std::int64_t wave = ceil_div(kNormBlocksPerMultiprocessor * multiprocessors(), across);
  return across * wave * tile * kMostSums;
}
std::int64_t batch_norm_tickets(std::int64_t channels) { return ceil_div(channels, kLanes * kVector); }

void batch_norm_statistics(const BatchNormStatistics& a, cudaStream_t stream) {
  check_batch_norm(a.rows, a.channels);
  statistics_kernel<<<norm_grid(a.rows, a.channels), kNormThreads, 0, stream>>>(a);
  LOCKSTEP_CUDA_LAUNCHED();
}

void batch_norm_forward(const BatchNormForward& a, cudaStream_t stream) {
  check_batch_norm(a.rows, a.channels);
  require(a.added == nullptr || a.other.x == nullptr, "batch_norm", "one thing is added, not two");
  if (a.other.x != nullptr) return launch_forward<Added::kNormed>(a, stream);
  if (a.added != nullptr) return launch_forward<Added::kValue>(a, stream);
  launch_forward<Added::kNothing>(a, stream);
}

}  // namespace lockstep::kernels::cuda
