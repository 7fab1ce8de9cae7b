// Which rows of logits have their largest value at the target.
#pragma once

#include "lockstep/kernels/cuda/types.h"

namespace lockstep::kernels::cuda {

struct ArgMaxHits {
  const Bf16* logits = nullptr;           // [rows, classes]; no NaN
  const std::int32_t* targets = nullptr;  // [rows]; < 0 or >= classes: ignored
  float* hits = nullptr;                  // [rows] out: 1 where the first largest logit is the target's, otherwise 0
  std::int64_t rows = 0, classes = 0;     // classes: a multiple of 8
};
void arg_max_hits(const ArgMaxHits& a, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
