// The two ends of a residual network on channels-last images in bf16: pixels to the first convolution's input, the
// pooling after its normalisation, the average over all pixels.
#pragma once

#include "lockstep/kernels/cuda/batch_norm.h"

namespace lockstep::kernels::cuda {

// Max-pool 3x3, stride 2, padding 1 of ReLU(norm(x)); the normalised tensor itself is never written. Where a window
// holds its maximum twice, the first in reading order counts.
struct PooledNormForward {
  BatchNormLayer layer;           // x [images, height, width, channels]
  Bf16* y = nullptr;              // [images, pooled height, pooled width, channels]
  Bf16* chosen = nullptr;         // like y: the x that gave the maximum
  std::uint8_t* where = nullptr;  // like y: its place in the window, 0 to 8
  std::int64_t images = 0, height = 0, width = 0, channels = 0;
  bool squares = false;  // x is [images, height / 2, width / 2, 2, 2, channels]
};
constexpr std::int64_t pooled_side(std::int64_t side) { return (side - 1) / 2 + 1; }
void pooled_norm_forward(const PooledNormForward& a, cudaStream_t stream);

struct PooledNormBackward {
  BatchNormLayer layer;
  const Bf16* dy = nullptr;
  const Bf16* chosen = nullptr;
  const std::uint8_t* where = nullptr;
  BatchNormGradients gradients;
  std::int64_t images = 0, height = 0, width = 0, channels = 0;
  bool squares = false;  // as in forward, dx too
  BatchNormScratch scratch;
};
void pooled_norm_backward(const PooledNormBackward& a, cudaStream_t stream);

// The first convolution of a residual network, 7x7 of stride 2 and padding 3 over 3 colours, as a 3x3 convolution of
// stride 1 and padding 1 over squares of 4x4 pixels, 48 channels, that gives a square of 2x2 of its results at a time,
// 4 x out channels: three times the arithmetic, but in a shape that tensor cores are made for. Channel 12 p + 3 q + c
// of a square is colour c of the pixel at row p, column q; channel (2 a + b) out + o of the result is result o at row
// a, column b.

// Pixels as bytes to normalised bf16, (x / 255 - mean) / deviation, by squares. Sides are multiples of 4.
struct PixelSquares {
  const std::uint8_t* pixels = nullptr;  // [images, height, width, 3]
  Bf16* squares = nullptr;               // [images, height / 4, width / 4, 48]
  float mean[3] = {}, deviation[3] = {};
  std::int64_t images = 0, height = 0, width = 0;
};
void pixel_squares(const PixelSquares& a, cudaStream_t stream);

// weight [out, 3, 7, 7] to the 3x3 convolution's [4 out, 3, 3, 48] (channels last), and the gradient back.
void square_weights(const Bf16* weight, Bf16* squares, std::int64_t out, cudaStream_t stream);
void square_weights_backward(const Bf16* dsquares, Bf16* dweight, std::int64_t out, cudaStream_t stream);

// y [images, channels] = mean over the places of x [images, places, channels], and its gradient.
void average_places(const Bf16* x, Bf16* y, std::int64_t images, std::int64_t places, std::int64_t channels,
                    cudaStream_t stream);
void average_places_backward(const Bf16* dy, Bf16* dx, std::int64_t images, std::int64_t places, std::int64_t channels,
                             cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
