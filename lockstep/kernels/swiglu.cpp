#include "lockstep/kernels/swiglu.h"

#include "lockstep/kernels/vector_math.h"

namespace lockstep::kernels {
namespace {

template <typename T>
LOCKSTEP_INLINE void forward(const T* gate, const T* up, T* h, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) h[i] = gate[i] * vsigmoid(gate[i]) * up[i];
}

template <bool kWithValue, typename T>
LOCKSTEP_INLINE void backward(const T* gate, const T* up, const T* dh, T* dgate, T* dup, T* h, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const T g = gate[i];
    const T u = up[i];
    const T d = dh[i];
    const T s = vsigmoid(g);
    const T silu = g * s;
    dgate[i] = d * u * (s + silu * (T(1) - s));
    dup[i] = d * silu;
    if constexpr (kWithValue) h[i] = silu * u;
  }
}

template <typename T>
LOCKSTEP_INLINE void backward_any(const T* gate, const T* up, const T* dh, T* dgate, T* dup, T* h, std::int64_t count) {
  if (h) {
    backward<true>(gate, up, dh, dgate, dup, h, count);
  } else {
    backward<false>(gate, up, dh, dgate, dup, h, count);
  }
}

}  // namespace

LOCKSTEP_MULTIVERSION void swiglu_forward(const float* gate, const float* up, float* h, std::int64_t count) {
  forward(gate, up, h, count);
}

LOCKSTEP_MULTIVERSION void swiglu_forward(const double* gate, const double* up, double* h, std::int64_t count) {
  forward(gate, up, h, count);
}

LOCKSTEP_MULTIVERSION void swiglu_backward(const float* gate, const float* up, const float* dh, float* dgate,
                                           float* dup, float* h, std::int64_t count) {
  backward_any(gate, up, dh, dgate, dup, h, count);
}

LOCKSTEP_MULTIVERSION void swiglu_backward(const double* gate, const double* up, const double* dh, double* dgate,
                                           double* dup, double* h, std::int64_t count) {
  backward_any(gate, up, dh, dgate, dup, h, count);
}

}  // namespace lockstep::kernels
