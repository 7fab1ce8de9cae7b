// Batch normalisation (Ioffe, Szegedy 2015) of channels-last images in bf16 with fp32 statistics, with what follows it
// in a residual network: ReLU, or addition and ReLU. A row is a pixel; channels are a multiple of 8.
//
// Forward is two passes: statistics, then everything else at once. Backward is two as well: sums, then gradients. The
// first of two passes walks from the end of the tensor, where the cache still holds what was written last, and the
// second from the front, where the first one ended.
#pragma once

#include "lockstep/kernels/cuda/types.h"

namespace lockstep::kernels::cuda {

// Scratch of the reductions: partial sums of blocks, which the last block adds in a fixed order.
struct BatchNormScratch {
  float* sums = nullptr;        // batch_norm_scratch_floats(channels)
  unsigned* tickets = nullptr;  // batch_norm_tickets(channels), zero before the first use; zero again after every one
};
std::int64_t batch_norm_scratch_floats(std::int64_t channels);
std::int64_t batch_norm_tickets(std::int64_t channels);

// One normalisation: y = (x - mean) * rstd * weight + bias.
struct BatchNormLayer {
  const Bf16* x = nullptr;       // [rows, channels]
  const Bf16* weight = nullptr;  // [channels]
  const Bf16* bias = nullptr;    // [channels]
  float* mean = nullptr;         // [channels]
  float* rstd = nullptr;         // [channels]
};

// Writes layer.mean and layer.rstd.
struct BatchNormStatistics {
  BatchNormLayer layer;
  float* running_mean = nullptr;    // [channels], moved towards this batch's; null: not kept
  float* running_var = nullptr;     // [channels], unbiased
  std::int64_t* batches = nullptr;  // counted up; null: not kept
  float momentum = 0.1f;
  float epsilon = 1e-5f;
  std::int64_t rows = 0, channels = 0;
  BatchNormScratch scratch;
};
void batch_norm_statistics(const BatchNormStatistics& a, cudaStream_t stream);

// y = ReLU(norm(x) + what is added): nothing, `added` as it is, or `other` normalised.
struct BatchNormForward {
  BatchNormLayer layer;
  const Bf16* added = nullptr;   // [rows, channels]; null: nothing
  BatchNormLayer other;          // other.x null: nothing
  Bf16* y = nullptr;             // [rows, channels]
  std::uint8_t* mask = nullptr;  // [rows * channels / 8], a bit per element that is above 0; with `added` or `other`
  // With `added` or `other`: a second copy of the pixels in even rows and columns, [images, height / 2, width / 2,
  // channels], for a convolution that visits only those. Height and width are even. Null: none.
  Bf16* even = nullptr;
  std::int64_t width = 0;  // with `even`
  std::int64_t rows = 0, channels = 0;
};
void batch_norm_forward(const BatchNormForward& a, cudaStream_t stream);

// Gradients of x, weight and bias of one layer. mean_g and mean_gx pass from the first pass to the second.
struct BatchNormGradients {
  Bf16* dx = nullptr;        // [rows, channels]
  Bf16* dweight = nullptr;   // [channels]
  Bf16* dbias = nullptr;     // [channels]
  float* mean_g = nullptr;   // [channels]
  float* mean_gx = nullptr;  // [channels]
};

// Of ReLU(norm(x)): where ReLU passed is computed again from x.
struct BatchNormBackward {
  BatchNormLayer layer;
  const Bf16* dy = nullptr;  // [rows, channels]
  BatchNormGradients gradients;
  std::int64_t rows = 0, channels = 0;
  BatchNormScratch scratch;
};
void batch_norm_backward(const BatchNormBackward& a, cudaStream_t stream);

// The first pass alone, for callers that make dx themselves (pooling.h): x and dy hold the `rows` elements whose
// gradient is not zero, means are taken over `count`.
void batch_norm_backward_sums(const BatchNormBackward& a, std::int64_t count, cudaStream_t stream);

// Of ReLU(norm(x) + added): `g` is the gradient of what was added. With `other` it is the gradient of both
// normalisations' outputs.
struct BatchNormAddBackward {
  BatchNormLayer layer;
  BatchNormLayer other;        // x null: there is none
  const Bf16* dy = nullptr;    // [rows, channels]
  const Bf16* more = nullptr;  // [rows, channels], a second gradient of the same output; null: none
  bool more_is_even = false;   // `more` is the gradient of forward's `even`
  std::int64_t width = 0;      // with more_is_even
  const std::uint8_t* mask = nullptr;
  Bf16* g = nullptr;  // [rows, channels]
  BatchNormGradients gradients;
  BatchNormGradients other_gradients;
  std::int64_t rows = 0, channels = 0;
  BatchNormScratch scratch;
};
void batch_norm_add_backward(const BatchNormAddBackward& a, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
