// Rotary positions of two vectors of a head, shared by the kernels that do it alone and inside a product.
#pragma once

#include "lockstep/kernels/cuda/common.cuh"

namespace lockstep::kernels::cuda {

struct Angles {
  float cos[kVector], sin[kVector];
};
// Of eight neighbouring frequencies at `place` of the tables.
__device__ inline Angles load_angles(const float* cos, const float* sin, std::int64_t place) {
  Angles a;
  load_floats(cos + place, a.cos);
  load_floats(sin + place, a.sin);
  return a;
}
// A vector of a head's first half and its partner of the second; sign -1 rotates back.
__device__ inline void turn(const Vector& first, const Vector& second, const Angles& a, float sign, float (&f)[kVector],
                            float (&s)[kVector]) {
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    f[i] = first[i] * a.cos[i] - sign * second[i] * a.sin[i];
    s[i] = sign * first[i] * a.sin[i] + second[i] * a.cos[i];
  }
}

}  // namespace lockstep::kernels::cuda
