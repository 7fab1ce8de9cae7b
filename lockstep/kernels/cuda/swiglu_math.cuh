// SwiGLU of one element, shared by the kernels that do it alone and inside a product.
#pragma once

namespace lockstep::kernels::cuda {

// 1 / (1 + 2^(-x log2 e)) by the two approximations of the hardware. Results too small for a normal float become 0,
// which spares the steps that __expf and __fdividef take to keep them; 1 + such an exponential is 1 anyway.
__device__ inline float sigmoid(float x) {
  float power, result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.4426950408889634f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0f + power));
  return result;
}
__device__ inline float swiglu(float gate, float up) { return gate * sigmoid(gate) * up; }

struct SwigluGradient {
  float dgate, dup, h;
};
__device__ inline SwigluGradient swiglu_gradient(float gate, float up, float dh) {
  const float s = sigmoid(gate), silu = gate * s;
  return {dh * up * s * (1.0f + gate * (1.0f - s)), dh * silu, silu * up};
}

}  // namespace lockstep::kernels::cuda
