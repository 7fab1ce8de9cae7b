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

__global__ void __launch_bounds__(kNormThreads, kSlim) sums_kernel(BatchNormBackward a, float count) {
  constexpr int kAhead = 2;
  const std::int64_t c = NormTile::channel();
  float sums[2][kVector] = {};
  if (c < a.channels) {
    const Affine own = affine_of(a.layer, c);
    float mean[kVector];
    load_floats(a.layer.mean + c, mean);
    Vector x[kAhead], dy[kAhead];
    const auto fetch = [&](int k, unsigned place) {
      x[k] = load(vector_at(a.layer.x, place));
      dy[k] = load(vector_at(a.dy, place));
    };
    const auto use = [&](int k, unsigned) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float g = fmaf(x[k][i], own.scale[i], own.shift[i]) > 0.0f ? dy[k][i] : 0.0f;
        sums[0][i] += g;
        sums[1][i] = fmaf(g, x[k][i] - mean[i], sums[1][i]);
      }
    };
    walk_rows<kAhead, From::kEnd>(a.rows, a.channels, fetch, use);
  }
  sum_over_rows(sums, a.scratch, a.channels, [&](std::int64_t channel, const float(&totals)[2]) {
    finish_layer(a.layer, a.gradients, channel, totals[0], totals[1], count);
  });
}

__global__ void __launch_bounds__(kNormThreads, kSlim) gradient_kernel(BatchNormBackward a) {
  constexpr int kAhead = 2;
  const std::int64_t c = NormTile::channel();
  if (c >= a.channels) return;
  const Slopes s = slopes_of(a.layer, a.gradients, c);
  const Affine own = affine_of(a.layer, c);
  Vector x[kAhead], dy[kAhead];
  const auto fetch = [&](int k, unsigned place) {
    x[k] = load_once(vector_at(a.layer.x, place));
    dy[k] = load_once(vector_at(a.dy, place));
  };
  const auto use = [&](int k, unsigned place) {
    float f[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      f[i] = s(i, fmaf(x[k][i], own.scale[i], own.shift[i]) > 0.0f ? dy[k][i] : 0.0f, x[k][i]);
    store(vector_at(a.gradients.dx, place), pack(f));
  };
  walk_rows<kAhead, From::kFront>(a.rows, a.channels, fetch, use);
}

// g = (dy + more) where the mask is set, rounded; its sums, and those with the inputs of one or two layers.
enum class More { kNone, kAll, kEven };

template <More kMore, bool kOther>
__global__ void __launch_bounds__(kNormThreads, kOther ? kWide : kSlim) add_sums_kernel(BatchNormAddBackward a) {
  constexpr int kSums = kOther ? 3 : 2, kAhead = 2;
  const std::int64_t c = NormTile::channel();
  float sums[kSums][kVector] = {};
  if (c < a.channels) {
    float mean[kVector], other_mean[kVector];
    load_floats(a.layer.mean + c, mean);
    if constexpr (kOther) load_floats(a.other.mean + c, other_mean);
    Vector x[kAhead], dy[kAhead], more[kAhead], other[kAhead];
    unsigned bits[kAhead];
    const auto fetch = [&](int k, unsigned place) {
      x[k] = load(vector_at(a.layer.x, place));
      dy[k] = load_once(vector_at(a.dy, place));
      if constexpr (kMore == More::kAll) more[k] = load_once(vector_at(a.more, place));
      if constexpr (kMore == More::kEven) {
        const unsigned even =
            even_place(place, static_cast<unsigned>(a.channels) / kVector, static_cast<unsigned>(a.width));
        more[k] = even == kOdd ? Vector{} : load_once(vector_at(a.more, even));
      }
      if constexpr (kOther) other[k] = load(vector_at(a.other.x, place));
      bits[k] = a.mask[place];
    };
    const auto use = [&](int k, unsigned place) {
      float f[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        f[i] = bits[k] >> i & 1u ? (kMore == More::kNone ? dy[k][i] : dy[k][i] + more[k][i]) : 0.0f;
      const Vector g = pack(f);
      store(vector_at(a.g, place), g);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        sums[0][i] += g[i];
        sums[1][i] = fmaf(g[i], x[k][i] - mean[i], sums[1][i]);
        if constexpr (kOther) sums[2][i] = fmaf(g[i], other[k][i] - other_mean[i], sums[2][i]);
      }
    };
    walk_rows<kAhead, From::kEnd>(a.rows, a.channels, fetch, use);
  }
  sum_over_rows(sums, a.scratch, a.channels, [&](std::int64_t channel, const float(&totals)[kSums]) {
    const auto n = static_cast<float>(a.rows);
    finish_layer(a.layer, a.gradients, channel, totals[0], totals[1], n);
    if constexpr (kOther) finish_layer(a.other, a.other_gradients, channel, totals[0], totals[kSums - 1], n);
  });
}

template <bool kOther>
__global__ void __launch_bounds__(kNormThreads, kOther ? kWide : kSlim) add_gradient_kernel(BatchNormAddBackward a) {
  constexpr int kAhead = 2;
  const std::int64_t c = NormTile::channel();
  if (c >= a.channels) return;
  const Slopes own = slopes_of(a.layer, a.gradients, c);
  Slopes second{};
  if constexpr (kOther) second = slopes_of(a.other, a.other_gradients, c);
  const auto write = [](Bf16* dx, const Slopes& s, const Vector& g, const Vector& x) {
    float f[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) f[i] = s(i, g[i], x[i]);
    store(dx, pack(f));
  };
  Vector g[kAhead], x[kAhead], other[kAhead];
  const auto fetch = [&](int k, unsigned place) {
    g[k] = load(vector_at(a.g, place));
    x[k] = load_once(vector_at(a.layer.x, place));
    if constexpr (kOther) other[k] = load_once(vector_at(a.other.x, place));
  };
  const auto use = [&](int k, unsigned place) {
    write(vector_at(a.gradients.dx, place), own, g[k], x[k]);
    if constexpr (kOther) write(vector_at(a.other_gradients.dx, place), second, g[k], other[k]);
  };
  walk_rows<kAhead, From::kFront>(a.rows, a.channels, fetch, use);
}

template <bool kOther>
void launch_add(const BatchNormAddBackward& a, cudaStream_t stream) {
  const dim3 grid = norm_grid(a.rows, a.channels, kOther ? kWide : kSlim);
  if (a.more == nullptr) {
    add_sums_kernel<More::kNone, kOther><<<grid, kNormThreads, 0, stream>>>(a);
  } else if (a.more_is_even) {
    add_sums_kernel<More::kEven, kOther><<<grid, kNormThreads, 0, stream>>>(a);
  } else {
    add_sums_kernel<More::kAll, kOther><<<grid, kNormThreads, 0, stream>>>(a);
  }
  LOCKSTEP_CUDA_LAUNCHED();
  add_gradient_kernel<kOther><<<grid, kNormThreads, 0, stream>>>(a);
  LOCKSTEP_CUDA_LAUNCHED();
}

}  // namespace

void batch_norm_backward_sums(const BatchNormBackward& a, std::int64_t count, cudaStream_t stream) {
  check_batch_norm(a.rows, a.channels);
  sums_kernel<<<norm_grid(a.rows, a.channels, kSlim), kNormThreads, 0, stream>>>(a, static_cast<float>(count));
  LOCKSTEP_CUDA_LAUNCHED();
}

void batch_norm_backward(const BatchNormBackward& a, cudaStream_t stream) {
  batch_norm_backward_sums(a, a.rows, stream);
  gradient_kernel<<<norm_grid(a.rows, a.channels, kSlim), kNormThreads, 0, stream>>>(a);
  LOCKSTEP_CUDA_LAUNCHED();
}

void batch_norm_add_backward(const BatchNormAddBackward& a, cudaStream_t stream) {
  check_batch_norm(a.rows, a.channels);
  require(!a.more_is_even || (a.width > 0 && a.width % 2 == 0), "batch_norm", "the width must be even");
  if (a.other.x != nullptr) {
    launch_add<true>(a, stream);
  } else {
    launch_add<false>(a, stream);
  }
}

}  // namespace lockstep::kernels::cuda
