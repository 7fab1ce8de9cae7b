// Element-wise reductions on host memory, shared by the backends.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/comm/dtype.h"

namespace lockstep::comm {

float f16_to_float(std::uint16_t bits);
std::uint16_t float_to_f16(float value);  // round to nearest even
float bf16_to_float(std::uint16_t bits);
std::uint16_t float_to_bf16(float value);  // round to nearest even

// out[i] = a[i] op b[i]. `out` may be `a` or `b`. f16 and bf16 are computed in f32 and rounded once per call. Sums of
// integers wrap around; max and min of a NaN are unspecified.
void reduce_pair(void* out, const void* a, const void* b, std::int64_t count, DType dtype, ReduceOp op);

// out[i] = inputs[0][i] op inputs[1][i] op ..., from left to right. f16 and bf16 are accumulated in f32 and rounded
// once at the end. `out` may be one of the inputs.
void reduce_in_order(void* out, const std::vector<const void*>& inputs, std::int64_t count, DType dtype, ReduceOp op);

// Slice `index` of `count` elements cut into `parts` nearly equal slices.
struct Slice {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};
Slice slice_of(std::int64_t count, int parts, int index);

}  // namespace lockstep::comm
