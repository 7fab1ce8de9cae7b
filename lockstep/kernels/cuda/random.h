// First values of parameters, written straight into the two halves of the master weight (see adamw.h).
#pragma once

#include "lockstep/kernels/cuda/types.h"

namespace lockstep::kernels::cuda {

// Normal values from a counter-based generator: element i depends on (seed, i) only.
void fill_normal(Bf16* weight, std::int16_t* remainder, std::int64_t count, float deviation, std::uint32_t seed,
                 cudaStream_t stream);
// The same with values uniform in [-bound, bound).
void fill_uniform(Bf16* weight, std::int16_t* remainder, std::int64_t count, float bound, std::uint32_t seed,
                  cudaStream_t stream);
// out[i] = mean + deviation * draw number first + i of the stream `key` (nn/random.h): Philox4x32-10 and Box-Muller in
// double, rounded once more per type. T: double, float or Bf16. Libraries differ in the last bit of a double's
// logarithm or cosine, so a value may differ from the host's by one rounding, once in millions of floats.
template <class T>
void fill_stream_normal(T* out, std::int64_t count, std::int64_t first, double mean, double deviation,
                        const std::uint32_t (&key)[2], cudaStream_t stream);
void fill_value(Bf16* weight, std::int16_t* remainder, std::int64_t count, float value, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
