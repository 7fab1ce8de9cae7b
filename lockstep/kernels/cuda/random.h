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
void fill_value(Bf16* weight, std::int16_t* remainder, std::int64_t count, float value, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
