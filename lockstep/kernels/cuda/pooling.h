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
  BatchNormScratch scratch;
};
void pooled_norm_backward(const PooledNormBackward& a, cudaStream_t stream);

// Pixels as bytes to normalised bf16, (x / 255 - mean) / deviation, with every 2x2 square of pixels as one place of 16
// channels: channel 6 p + 3 q + c is colour c of the pixel at row p, column q of the square; the last four are 0. Two
// places of zeros stand before and one behind in both directions: a 7x7 convolution of stride 2 and padding 3 over the
// pixels is a 4x4 convolution of stride 1 without padding over the places. Sides are even.
struct PixelSquares {
  const std::uint8_t* pixels = nullptr;  // [images, height, width, 3]
  Bf16* squares = nullptr;               // [images, height / 2 + 3, width / 2 + 3, 16]
  float mean[3] = {}, deviation[3] = {};
  std::int64_t images = 0, height = 0, width = 0;
};
void pixel_squares(const PixelSquares& a, cudaStream_t stream);

// y [images, channels] = mean over the places of x [images, places, channels], and its gradient.
void average_places(const Bf16* x, Bf16* y, std::int64_t images, std::int64_t places, std::int64_t channels,
                    cudaStream_t stream);
void average_places_backward(const Bf16* dy, Bf16* dx, std::int64_t images, std::int64_t places, std::int64_t channels,
                             cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
