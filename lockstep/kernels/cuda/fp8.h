// Quantisation to 8-bit floats with one scale per tensor, and the bookkeeping of scales.
//
// Current scaling: measure_amax, update_scales, then quantize with the scale of this very tensor: two readings.
// Delayed scaling: a producer quantises with the scale of earlier steps and records the amax for later ones.
#pragma once

#include "lockstep/kernels/cuda/types.h"

namespace lockstep::kernels::cuda {

// *amax is raised to max |x|. count: a multiple of 8.
void measure_amax(const Bf16* x, std::int64_t count, float* amax, cudaStream_t stream);

// out.data = saturate(x * *out.scale); out.amax is raised. count: a multiple of 8.
void quantize(const Bf16* x, const Fp8Output& out, std::int64_t count, cudaStream_t stream);

// The same of a matrix [rows, cols], and once more transposed [cols, rows]: Hopper's 8-bit GEMMs want both operands
// contiguous along the summed dimension. rows and cols: multiples of 64. out.data may be null.
void quantize_transpose(const Bf16* x, const Fp8Output& out, std::uint8_t* transposed, std::int64_t rows,
                        std::int64_t cols, cudaStream_t stream);

// Per-tensor scales of `count` tensors: history [kFp8History, count] is a ring of amax values.
constexpr int kFp8History = 16;
constexpr int kFp8Stride = 4;  // floats from one scale to the next: cuBLASLt wants the pointers 16-byte aligned
struct Fp8Scales {
  float* amax = nullptr;                    // [count], raised by producers; reset to 0 here
  float* history = nullptr;                 // [kFp8History, count]
  float* scale = nullptr;                   // [count, kFp8Stride], the first of each: values are multiplied by it
  float* inverse = nullptr;                 // [count, kFp8Stride], 1 / scale: what the GEMM takes
  const std::uint8_t* gradients = nullptr;  // [count], 1: e5m2, 0: e4m3
  std::int32_t* slot = nullptr;             // [count], place of the next amax in the ring
  int count = 0;
};
// scale = 2^-margin * largest of the format / largest amax of the history; kept where that is 0 or not finite.
void update_scales(const Fp8Scales& a, float margin, cudaStream_t stream);

// scale of one tensor from the amax measured so far in this step.
void current_scale(const Fp8Scales& a, int tensor, float margin, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
