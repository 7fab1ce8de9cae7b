// Matrices side by side in one, and the sums of its columns: the gradients of q, k and v become the gradient of the
// packed product and of its bias in one pass. With one matrix and no output it is the gradient of a bias alone.
#pragma once

#include "lockstep/kernels/cuda/types.h"

namespace lockstep::kernels::cuda {

constexpr int kJoinMost = 3;

struct JoinColumns {
  const Bf16* parts[kJoinMost] = {};  // each [rows, part_cols], dense
  int count = 1;                      // of parts
  std::int64_t part_cols = 0;         // a multiple of 8
  Bf16* out = nullptr;                // [rows, count * part_cols]; null: only the sums are wanted
  Bf16* sums = nullptr;               // [count * part_cols], in a fixed order; null: not wanted
  float* workspace = nullptr;         // join_workspace_floats(count * part_cols), with sums
  std::int64_t rows = 0;
};
void join_columns(const JoinColumns& a, cudaStream_t stream);
std::int64_t join_workspace_floats(std::int64_t cols);

}  // namespace lockstep::kernels::cuda
