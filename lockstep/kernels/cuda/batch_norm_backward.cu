#include <algorithm>

#include "lockstep/kernels/cuda/batch_norm_common.cuh"

namespace lockstep::kernels::cuda {
namespace {

// What the sums of one layer become. totals: sum of g, sum of g (x - mean).
__device__ void finish_layer(const BatchNormLayer& layer, const BatchNormGradients& out, std::int64_t channel, float g,
                             float gx, float count) {
  gx *= layer.rstd[channel];
  out.dbias[channel] = __float2bfloat16(g);
  out.dweight[channel] = __float2bfloat16(gx);
  out.mean_g[channel] = g / count;
  out.mean_gx[channel] = gx / count;
}

__global__ void __launch_bounds__(kNormThreads, kNormBlocksPerMultiprocessor)
    sums_kernel(BatchNormBackward a, float count) {
  using Tile = NormTile;
  const std::int64_t c = Tile::channel(), stride = Tile::stride();
  float sums[2][kVector] = {};
  if (c < a.channels) {
    const Affine own = affine_of(a.layer, c);
    float mean[kVector];
    load_floats(a.layer.mean + c, mean);
    const auto add = [&](const Vector& x, const Vector& dy) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float g = fmaf(x[i], own.scale[i], own.shift[i]) > 0.0f ? dy[i] : 0.0f;
        sums[0][i] += g;
        sums[1][i] = fmaf(g, x[i] - mean[i], sums[1][i]);
      }
    };
    constexpr int kAhead = 2;  // of two tensors
    std::int64_t row = a.rows - 1 - Tile::first_row();
    for (; row - (kAhead - 1) * stride >= 0; row -= kAhead * stride) {
      Vector x[kAhead], dy[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const std::int64_t place = (row - k * stride) * a.channels + c;
        x[k] = load(a.layer.x + place);
        dy[k] = load(a.dy + place);
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) add(x[k], dy[k]);
    }
    for (; row >= 0; row -= stride) add(load(a.layer.x + row * a.channels + c), load(a.dy + row * a.channels + c));
  }
  sum_over_rows(sums, a.scratch, a.channels, [&](std::int64_t channel, const float(&totals)[2]) {
    finish_layer(a.layer, a.gradients, channel, totals[0], totals[1], count);
  });
}

// Eight channels of dx = scale (g - mean_g - (x - mean) rstd mean_gx) as scale g - (offset + slope x).
struct Slopes {
  float scale[kVector], offset[kVector], slope[kVector];

  __device__ float operator()(int i, float g, float x) const {
    return fmaf(scale[i], g, -fmaf(slope[i], x, offset[i]));
  }
};
__device__ Slopes slopes_of(const BatchNormLayer& layer, const BatchNormGradients& gradients, std::int64_t channel) {
  Slopes s;
  const Vector weight = load(layer.weight + channel);
  float mean[kVector], rstd[kVector], mean_g[kVector], mean_gx[kVector];
  load_floats(layer.mean + channel, mean);
  load_floats(layer.rstd + channel, rstd);
  load_floats(gradients.mean_g + channel, mean_g);
  load_floats(gradients.mean_gx + channel, mean_gx);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    s.scale[i] = weight[i] * rstd[i];
    s.slope[i] = s.scale[i] * rstd[i] * mean_gx[i];
    s.offset[i] = s.scale[i] * mean_g[i] - s.slope[i] * mean[i];
  }
  return s;
}

__global__ void __launch_bounds__(kNormThreads, kNormBlocksPerMultiprocessor) gradient_kernel(BatchNormBackward a) {
  using Tile = NormTile;
  const std::int64_t c = Tile::channel(), stride = Tile::stride();
  if (c >= a.channels) return;
  const Slopes s = slopes_of(a.layer, a.gradients, c);
  const Affine own = affine_of(a.layer, c);
  const auto write = [&](std::int64_t place, const Vector& x, const Vector& dy) {
    float f[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) f[i] = s(i, fmaf(x[i], own.scale[i], own.shift[i]) > 0.0f ? dy[i] : 0.0f, x[i]);
    store(a.gradients.dx + place, pack(f));
  };
  std::int64_t row = Tile::first_row();
  for (; row + stride < a.rows; row += 2 * stride) {
    const std::int64_t place = row * a.channels + c, next = (row + stride) * a.channels + c;
    const Vector x0 = load(a.layer.x + place), x1 = load(a.layer.x + next);
    const Vector dy0 = load(a.dy + place), dy1 = load(a.dy + next);
    write(place, x0, dy0);
    write(next, x1, dy1);
  }
  if (row < a.rows) {
    const std::int64_t place = row * a.channels + c;
    write(place, load(a.layer.x + place), load(a.dy + place));
  }
}

// g = (dy + more) where the mask is set, rounded; its sums, and those with the inputs of one or two layers.
template <bool kMore, bool kOther>
__global__ void __launch_bounds__(kNormThreads, kNormBlocksPerMultiprocessor) add_sums_kernel(BatchNormAddBackward a) {
  using Tile = NormTile;
  constexpr int kSums = kOther ? 3 : 2;
  const std::int64_t c = Tile::channel(), stride = Tile::stride();
  float sums[kSums][kVector] = {};
  if (c < a.channels) {
    float mean[kVector], other_mean[kVector];
    load_floats(a.layer.mean + c, mean);
    if constexpr (kOther) load_floats(a.other.mean + c, other_mean);
    const auto add = [&](std::int64_t place, const Vector& x, const Vector& dy, const Vector& more, const Vector& other,
                         unsigned bits) {
      float f[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) f[i] = bits >> i & 1u ? (kMore ? dy[i] + more[i] : dy[i]) : 0.0f;
      const Vector g = pack(f);
      store(a.g + place, g);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        sums[0][i] += g[i];
        sums[1][i] = fmaf(g[i], x[i] - mean[i], sums[1][i]);
        if constexpr (kOther) sums[2][i] = fmaf(g[i], other[i] - other_mean[i], sums[2][i]);
      }
    };
    constexpr int kAhead = kOther ? 1 : 2;
    std::int64_t row = a.rows - 1 - Tile::first_row();
    for (; row >= 0; row -= kAhead * stride) {
      Vector x[kAhead], dy[kAhead], more[kAhead], other[kAhead];
      unsigned bits[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (row - k * stride < 0) continue;
        const std::int64_t place = (row - k * stride) * a.channels + c;
        x[k] = load(a.layer.x + place);
        dy[k] = load(a.dy + place);
        if constexpr (kMore) more[k] = load(a.more + place);
        if constexpr (kOther) other[k] = load(a.other.x + place);
        bits[k] = a.mask[place / kVector];
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (row - k * stride >= 0) add((row - k * stride) * a.channels + c, x[k], dy[k], more[k], other[k], bits[k]);
    }
  }
  sum_over_rows(sums, a.scratch, a.channels, [&](std::int64_t channel, const float(&totals)[kSums]) {
    const auto n = static_cast<float>(a.rows);
    finish_layer(a.layer, a.gradients, channel, totals[0], totals[1], n);
    if constexpr (kOther) finish_layer(a.other, a.other_gradients, channel, totals[0], totals[kSums - 1], n);
  });
}

template <bool kOther>
__global__ void __launch_bounds__(kNormThreads, kNormBlocksPerMultiprocessor)
    add_gradient_kernel(BatchNormAddBackward a) {
  using Tile = NormTile;
  const std::int64_t c = Tile::channel(), stride = Tile::stride();
  if (c >= a.channels) return;
  const Slopes own = slopes_of(a.layer, a.gradients, c);
  Slopes second{};
  if constexpr (kOther) second = slopes_of(a.other, a.other_gradients, c);
  const auto write = [&](Bf16* dx, std::int64_t place, const Slopes& s, const Vector& g, const Vector& x) {
    float f[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) f[i] = s(i, g[i], x[i]);
    store(dx + place, pack(f));
  };
  constexpr int kAhead = kOther ? 1 : 2;
  for (std::int64_t row = Tile::first_row(); row < a.rows; row += kAhead * stride) {
    Vector g[kAhead], x[kAhead], other[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (row + k * stride >= a.rows) continue;
      const std::int64_t place = (row + k * stride) * a.channels + c;
      g[k] = load(a.g + place);
      x[k] = load(a.layer.x + place);
      if constexpr (kOther) other[k] = load(a.other.x + place);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (row + k * stride >= a.rows) continue;
      const std::int64_t place = (row + k * stride) * a.channels + c;
      write(a.gradients.dx, place, own, g[k], x[k]);
      if constexpr (kOther) write(a.other_gradients.dx, place, second, g[k], other[k]);
    }
  }
}

template <bool kOther>
void launch_add(const BatchNormAddBackward& a, cudaStream_t stream) {
  const dim3 grid = norm_grid(a.rows, a.channels);
  if (a.more != nullptr) {
    add_sums_kernel<true, kOther><<<grid, kNormThreads, 0, stream>>>(a);
  } else {
    add_sums_kernel<false, kOther><<<grid, kNormThreads, 0, stream>>>(a);
  }
  LOCKSTEP_CUDA_LAUNCHED();
  add_gradient_kernel<kOther><<<grid, kNormThreads, 0, stream>>>(a);
  LOCKSTEP_CUDA_LAUNCHED();
}

}  // namespace

void batch_norm_backward_sums(const BatchNormBackward& a, std::int64_t count, cudaStream_t stream) {
  check_batch_norm(a.rows, a.channels);
  sums_kernel<<<norm_grid(a.rows, a.channels), kNormThreads, 0, stream>>>(a, static_cast<float>(count));
  LOCKSTEP_CUDA_LAUNCHED();
}

void batch_norm_backward(const BatchNormBackward& a, cudaStream_t stream) {
  batch_norm_backward_sums(a, a.rows, stream);
  gradient_kernel<<<norm_grid(a.rows, a.channels), kNormThreads, 0, stream>>>(a);
  LOCKSTEP_CUDA_LAUNCHED();
}

void batch_norm_add_backward(const BatchNormAddBackward& a, cudaStream_t stream) {
  check_batch_norm(a.rows, a.channels);
  if (a.other.x != nullptr) {
    launch_add<true>(a, stream);
  } else {
    launch_add<false>(a, stream);
  }
}

}  // namespace lockstep::kernels::cuda
