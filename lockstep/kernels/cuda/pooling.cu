#include "lockstep/kernels/cuda/batch_norm_common.cuh"
#include "lockstep/kernels/cuda/pooling.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__device__ unsigned pooled(std::int64_t side) { return static_cast<unsigned>((side - 1) / 2 + 1); }

unsigned blocks_for(std::int64_t items, const char* where) {
  require(items < kIndexLimit, where, "the tensor is too large");
  return static_cast<unsigned>(ceil_div(items, kThreads));
}

// Where a thread's vector lies. Indices are 32 bits wide: they are divided.
struct Place {
  unsigned vector, column, row, image;
};
__device__ Place place_of(unsigned index, unsigned vectors, unsigned width, unsigned height) {
  Place p;
  p.vector = index % vectors, index /= vectors;
  p.column = index % width, index /= width;
  p.row = index % height, p.image = index / height;
  return p;
}

// Where pixel (row, column) of an image lies: row by row, or by squares of 2x2.
__device__ std::int64_t pixel_at(bool squares, std::int64_t image, int row, int column, int height, int width) {
  if (!squares) return (image * height + row) * width + column;
  const std::int64_t square = (image * (height / 2) + row / 2) * (width / 2) + column / 2;
  return square * 4 + row % 2 * 2 + column % 2;
}

__global__ void __launch_bounds__(kThreads) pool_kernel(PooledNormForward a, unsigned vectors, unsigned count) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= count) return;
  const int height = static_cast<int>(a.height), width = static_cast<int>(a.width);
  const Place p = place_of(index, vectors, pooled(width), pooled(height));
  const Affine own = affine_of(a.layer, p.vector * kVector);
  float best[kVector], source[kVector];
  std::uint32_t where[2] = {0, 0};  // a byte per channel
#pragma unroll
  for (int i = 0; i < kVector; ++i) best[i] = -INFINITY, source[i] = 0;
#pragma unroll
  for (int k = 0; k < 9; ++k) {
    const int row = 2 * static_cast<int>(p.row) + k / 3 - 1, column = 2 * static_cast<int>(p.column) + k % 3 - 1;
    if (row < 0 || row >= height || column < 0 || column >= width) continue;
    const std::int64_t pixel = pixel_at(a.squares, p.image, row, column, height, width);
    const Vector x = load(a.layer.x + pixel * a.channels + p.vector * kVector);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float value = fmaf(x[i], own.scale[i], own.shift[i]);
      if (!(value > best[i] || value != value)) continue;
      best[i] = value, source[i] = x[i];
      where[i / 4] = (where[i / 4] & ~(0xffu << (i % 4 * 8))) | static_cast<std::uint32_t>(k) << (i % 4 * 8);
    }
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) best[i] = best[i] < 0.0f ? 0.0f : best[i];  // NaN stays
  const std::int64_t out = static_cast<std::int64_t>(index) * kVector;
  store(a.y + out, pack(best));
  store(a.chosen + out, pack(source));
  *reinterpret_cast<uint2*>(a.where + out) = make_uint2(where[0], where[1]);
}

// A thread makes the gradients of a cell of 2x2 pixels. Together they lie in four windows: that of the cell and those
// below and to the right, of which only the second row or column of the cell is part.
__global__ void __launch_bounds__(kThreads)
    pool_gradient_kernel(PooledNormBackward a, unsigned vectors, unsigned count) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= count) return;
  const int height = static_cast<int>(a.height), width = static_cast<int>(a.width);
  const unsigned rows = pooled(height), columns = pooled(width);
  const Place p = place_of(index, vectors, columns, rows);
  const unsigned channel = p.vector * kVector;
  float g[4][kVector] = {};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const unsigned row = p.row + w / 2, column = p.column + w % 2;
    if (row >= rows || column >= columns) continue;
    const std::int64_t from =
        ((static_cast<std::int64_t>(p.image) * rows + row) * columns + column) * a.channels + channel;
    const uint2 where = *reinterpret_cast<const uint2*>(a.where + from);
    const Vector dy = load(a.dy + from);
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      const int u = d / 2 + 1 - w / 2 * 2, v = d % 2 + 1 - w % 2 * 2;  // the pixel's place in the window
      if (u < 0 || v < 0) continue;
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        if (((i < 4 ? where.x : where.y) >> (i % 4 * 8) & 0xffu) == static_cast<unsigned>(3 * u + v)) g[d][i] += dy[i];
    }
  }
  const Affine own = affine_of(a.layer, channel);
  const Slopes s = slopes_of(a.layer, a.gradients, channel);
#pragma unroll
  for (int d = 0; d < 4; ++d) {
    const int row = static_cast<int>(2 * p.row) + d / 2, column = static_cast<int>(2 * p.column) + d % 2;
    if (row >= height || column >= width) continue;
    const std::int64_t at = pixel_at(a.squares, p.image, row, column, height, width) * a.channels + channel;
    const Vector x = load_once(a.layer.x + at);
    float f[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) f[i] = s(i, fmaf(x[i], own.scale[i], own.shift[i]) > 0.0f ? g[d][i] : 0.0f, x[i]);
    store(a.gradients.dx + at, pack(f));
  }
}

constexpr int kSide = 4, kSquareChannels = kSide * kSide * 3;

// A thread makes one line of a square: 12 bytes become 12 values.
__global__ void __launch_bounds__(kThreads) squares_kernel(PixelSquares a, unsigned count) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= count) return;
  constexpr int kLine = 3 * kSide;
  const Place p =
      place_of(index / kSide, 1, static_cast<unsigned>(a.width / kSide), static_cast<unsigned>(a.height / kSide));
  const std::int64_t row = p.image * a.height + kSide * p.row + index % kSide;
  const auto* const words = reinterpret_cast<const std::uint32_t*>(a.pixels + (row * a.width + kSide * p.column) * 3);
  float scale[3], f[kLine];
#pragma unroll
  for (int c = 0; c < 3; ++c) scale[c] = 1.0f / (255.0f * a.deviation[c]);
#pragma unroll
  for (int i = 0; i < kLine; ++i) {
    const float value = static_cast<float>(words[i / 4] >> (i % 4 * 8) & 0xffu);
    f[i] = (value - 255.0f * a.mean[i % 3]) * scale[i % 3];
  }
  auto* const out = reinterpret_cast<uint2*>(a.squares + static_cast<std::int64_t>(index) * kLine);
#pragma unroll
  for (int i = 0; i < kLine / 4; ++i) {
    const __nv_bfloat162 low = __floats2bfloat162_rn(f[4 * i], f[4 * i + 1]);
    const __nv_bfloat162 high = __floats2bfloat162_rn(f[4 * i + 2], f[4 * i + 3]);
    out[i] = make_uint2(*reinterpret_cast<const std::uint32_t*>(&low), *reinterpret_cast<const std::uint32_t*>(&high));
  }
}

// Row u of the 7x7 kernel meets pixel 4 i + 2 a - 3 + u for result 2 i + a: row t = u + 2 a + 1 of the three squares i
// - 1 to i + 1.
constexpr int kKernel = 7;

__global__ void __launch_bounds__(kThreads)
    square_weights_kernel(const Bf16* weight, Bf16* squares, int out, int count) {
  const int index = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (index >= count) return;
  const int channel = index % kSquareChannels, place = index / kSquareChannels % 9;
  const int filter = index / kSquareChannels / 9, o = filter % out, a = filter / out / 2, b = filter / out % 2;
  const int u = place / 3 * kSide + channel / (3 * kSide) - (2 * a + 1);
  const int v = place % 3 * kSide + channel / 3 % kSide - (2 * b + 1);
  const bool inside = u >= 0 && u < kKernel && v >= 0 && v < kKernel;
  squares[index] = inside ? weight[((o * 3 + channel % 3) * kKernel + u) * kKernel + v] : __float2bfloat16(0.0f);
}

__global__ void __launch_bounds__(kThreads)
    square_weights_gradient_kernel(const Bf16* dsquares, Bf16* dweight, int out, int count) {
  const int index = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (index >= count) return;
  const int v = index % kKernel, u = index / kKernel % kKernel, colour = index / kKernel / kKernel % 3;
  const int o = index / (kKernel * kKernel * 3);
  float sum = 0;
  for (int a = 0; a < 2; ++a)
    for (int b = 0; b < 2; ++b) {
      const int t = u + 2 * a + 1, w = v + 2 * b + 1, filter = (2 * a + b) * out + o;
      const int place = t / kSide * 3 + w / kSide, channel = (t % kSide * kSide + w % kSide) * 3 + colour;
      sum += __bfloat162float(dsquares[(filter * 9 + place) * kSquareChannels + channel]);
    }
  dweight[index] = __float2bfloat16(sum);
}

__global__ void __launch_bounds__(kThreads)
    average_kernel(const Bf16* x, Bf16* y, int places, unsigned vectors, unsigned count) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= count) return;
  const std::int64_t image = index / vectors, channels = static_cast<std::int64_t>(vectors) * kVector;
  const Bf16* const from = x + image * places * channels + index % vectors * kVector;
  float sum[kVector] = {};
#pragma unroll 7
  for (int k = 0; k < places; ++k) {
    const Vector v = load(from + k * channels);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum[i] += v[i];
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum[i] /= static_cast<float>(places);
  store(y + static_cast<std::int64_t>(index) * kVector, pack(sum));
}

__global__ void __launch_bounds__(kThreads)
    average_gradient_kernel(const Bf16* dy, Bf16* dx, unsigned places, unsigned vectors, unsigned count) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= count) return;
  const unsigned image = index / vectors / places;
  float f[kVector];
  unpack(load(dy + (static_cast<std::int64_t>(image) * vectors + index % vectors) * kVector), f);
#pragma unroll
  for (int i = 0; i < kVector; ++i) f[i] /= static_cast<float>(places);
  store(dx + static_cast<std::int64_t>(index) * kVector, pack(f));
}

}  // namespace

void pooled_norm_forward(const PooledNormForward& a, cudaStream_t stream) {
  check_batch_norm(a.images * a.height * a.width, a.channels);
  require(!a.squares || (a.height % 2 == 0 && a.width % 2 == 0), "pooled_norm", "squares have even sides");
  const std::int64_t vectors = a.channels / kVector;
  const std::int64_t count = a.images * pooled_side(a.height) * pooled_side(a.width) * vectors;
  pool_kernel<<<blocks_for(count, "pooled_norm"), kThreads, 0, stream>>>(a, static_cast<unsigned>(vectors),
                                                                         static_cast<unsigned>(count));
  LOCKSTEP_CUDA_LAUNCHED();
}

void pooled_norm_backward(const PooledNormBackward& a, cudaStream_t stream) {
  const std::int64_t windows = a.images * pooled_side(a.height) * pooled_side(a.width);
  // Every gradient is that of a chosen element, so the sums need only those.
  BatchNormBackward sums{a.layer, a.dy, a.gradients, windows, a.channels, a.scratch};
  sums.layer.x = a.chosen;
  batch_norm_backward_sums(sums, a.images * a.height * a.width, stream);
  const std::int64_t vectors = a.channels / kVector, count = windows * vectors;
  pool_gradient_kernel<<<blocks_for(count, "pooled_norm"), kThreads, 0, stream>>>(a, static_cast<unsigned>(vectors),
                                                                                  static_cast<unsigned>(count));
  LOCKSTEP_CUDA_LAUNCHED();
}

void pixel_squares(const PixelSquares& a, cudaStream_t stream) {
  require(a.height % kSide == 0 && a.width % kSide == 0, "pixel_squares", "sides must be multiples of 4");
  const std::int64_t count = a.images * a.height * (a.width / kSide);
  if (count == 0) return;
  squares_kernel<<<blocks_for(count, "pixel_squares"), kThreads, 0, stream>>>(a, static_cast<unsigned>(count));
  LOCKSTEP_CUDA_LAUNCHED();
}

void square_weights(const Bf16* weight, Bf16* squares, std::int64_t out, cudaStream_t stream) {
  const std::int64_t count = out * 4 * 9 * kSquareChannels;
  square_weights_kernel<<<blocks_for(count, "square_weights"), kThreads, 0, stream>>>(
      weight, squares, static_cast<int>(out), static_cast<int>(count));
  LOCKSTEP_CUDA_LAUNCHED();
}

void square_weights_backward(const Bf16* dsquares, Bf16* dweight, std::int64_t out, cudaStream_t stream) {
  const std::int64_t count = out * 3 * kKernel * kKernel;
  square_weights_gradient_kernel<<<blocks_for(count, "square_weights"), kThreads, 0, stream>>>(
      dsquares, dweight, static_cast<int>(out), static_cast<int>(count));
  LOCKSTEP_CUDA_LAUNCHED();
}

void average_places(const Bf16* x, Bf16* y, std::int64_t images, std::int64_t places, std::int64_t channels,
                    cudaStream_t stream) {
  check_batch_norm(images * places, channels);
  const std::int64_t vectors = channels / kVector, count = images * vectors;
  average_kernel<<<blocks_for(count, "average_places"), kThreads, 0, stream>>>(
      x, y, static_cast<int>(places), static_cast<unsigned>(vectors), static_cast<unsigned>(count));
  LOCKSTEP_CUDA_LAUNCHED();
}

void average_places_backward(const Bf16* dy, Bf16* dx, std::int64_t images, std::int64_t places, std::int64_t channels,
                             cudaStream_t stream) {
  check_batch_norm(images * places, channels);
  const std::int64_t vectors = channels / kVector, count = images * places * vectors;
  average_gradient_kernel<<<blocks_for(count, "average_places"), kThreads, 0, stream>>>(
      dy, dx, static_cast<unsigned>(places), static_cast<unsigned>(vectors), static_cast<unsigned>(count));
  LOCKSTEP_CUDA_LAUNCHED();
}

}  // namespace lockstep::kernels::cuda
