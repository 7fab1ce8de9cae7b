// Inverted dropout by counter-based masks (Philox4x32-10, Salmon et al. 2011). A mask is a pure function of its
// numbers, so it is drawn again in backward instead of being kept, and it is the one that the CPU draws for the same
// numbers.
#pragma once

#include "lockstep/kernels/cuda/types.h"

namespace lockstep::kernels::cuda {

// Element e of sample s is dropped where word e % 4 of philox({e / 4, first_index + s, layer, step}, key) is below
// `threshold`, and multiplied by `kept` elsewhere. threshold 0: nothing is dropped.
struct DropoutMask {
  std::uint32_t key[2] = {0, 0};
  std::uint32_t first_index = 0, layer = 0, step = 0;
  std::uint32_t threshold = 0;
  float kept = 1.0f;
  std::int64_t rows_per_sample = 1;  // a sample is this many consecutive rows
  const std::int64_t* positions =
      nullptr;  // [rows_per_sample] numbers of the rows in the whole sample; null: 0, 1, ...
};

// out = residual + mask * (x + bias) over [rows, cols]. residual and bias may be null: nothing is added. out may be x
// or residual. T: Bf16 or float, fp32 arithmetic; cols: a multiple of 8.
template <class T>
struct Dropout {
  const T* x = nullptr;
  const T* bias = nullptr;      // [cols]
  const T* residual = nullptr;  // [rows, cols]
  T* out = nullptr;
  DropoutMask mask;
  std::int64_t rows = 0, cols = 0;
};
template <class T>
void dropout(const Dropout<T>& a, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
