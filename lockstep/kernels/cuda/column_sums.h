// The second stage of a sum over rows: blocks leave partial sums, one row each, and these are added in a fixed order.
#pragma once

#include "lockstep/kernels/cuda/types.h"

namespace lockstep::kernels::cuda {

// out [cols] (+)= column sums of parts [count, cols].
void sum_parts(const float* parts, std::int64_t count, std::int64_t cols, float* out, bool accumulate,
               cudaStream_t stream);
// The same, rounded.
void sum_parts(const float* parts, std::int64_t count, std::int64_t cols, Bf16* out, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
