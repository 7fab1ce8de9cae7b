// h = silu(gate) * up, element by element; serial, the caller splits the range over threads.
#pragma once

#include <cstdint>

namespace lockstep::kernels {

void swiglu_forward(const float* gate, const float* up, float* h, std::int64_t count);
void swiglu_forward(const double* gate, const double* up, double* h, std::int64_t count);

// `h`, unless null, gets the forward value again; it may be dh. dgate and dup may not overlap the inputs.
void swiglu_backward(const float* gate, const float* up, const float* dh, float* dgate, float* dup, float* h,
                     std::int64_t count);
void swiglu_backward(const double* gate, const double* up, const double* dh, double* dgate, double* dup, double* h,
                     std::int64_t count);

}  // namespace lockstep::kernels
