// Element types and small structs of the CUDA kernels' interface. No libtorch: raw device pointers and a stream.
// Unless a comment says otherwise pointers are device memory, 16-byte aligned, and calls return at once (stream order).
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace lockstep::kernels::cuda {

using Bf16 = __nv_bfloat16;

// e4m3 (largest 448) carries weights and activations, e5m2 (largest 57344) gradients.
enum class Fp8Format { kE4m3, kE5m2 };
constexpr float fp8_largest(Fp8Format format) { return format == Fp8Format::kE4m3 ? 448.0f : 57344.0f; }

// A second, 8-bit output of a kernel: data = saturate(value * *scale). *amax is raised to the largest |value|, before
// scaling, by an atomic maximum; values are finite or the result is undefined. data null: no such output.
struct Fp8Output {
  std::uint8_t* data = nullptr;
  const float* scale = nullptr;
  float* amax = nullptr;
  Fp8Format format = Fp8Format::kE4m3;
};

}  // namespace lockstep::kernels::cuda
