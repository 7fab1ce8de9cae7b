// The 8-bit side of the dense step: scales per tensor, 8-bit copies of the weights, scratch for activations.
//
// Forward and data gradient of the layers' matrices run in 8 bits (inputs and weights e4m3, gradients e5m2); weight
// gradients, the head and attention stay in bf16.
#pragma once

#include "lockstep/engine/fused/gemm.h"
#include "lockstep/engine/fused/parameters.h"
#include "lockstep/kernels/cuda/fp8.h"

namespace lockstep::engine::cuda {

class FusedFp8 {
 public:
  FusedFp8(const FusedShape& shape, const FusedParameters& parameters);
  void want(DeviceArena& arena);
  void initialize(cudaStream_t stream);  // waits

  enum class Role { kInput, kGradient, kWeight };

  // Measured scales for everything that is quantised from here on, or the scales of earlier steps.
  void set_current(bool current) { current_ = current; }
  bool current() const { return current_; }

  // A kernel's second output for the input or the output's gradient of a linear layer; empty under current scaling.
  kernels::cuda::Fp8Output output(std::int64_t layer, Linear which, Role role) const;
  // Under current scaling: measure and quantise now. Otherwise nothing: the kernel has done it.
  void settle(std::int64_t layer, Linear which, Role role, const Bf16* x, std::int64_t count, cudaStream_t stream);
  // Quantises where no kernel of ours produces x (attention's output).
  void quantize(std::int64_t layer, Linear which, Role role, const Bf16* x, std::int64_t count, cudaStream_t stream);
  void quantize_weights(cudaStream_t stream);
  // After the last micro-batch of a step: amax values enter the history, scales follow.
  void end_step(cudaStream_t stream);

  Operand activation(std::int64_t layer, Linear which, Role role) const;
  Operand weight(std::int64_t layer, Linear which) const;             // [out, in]
  Operand weight_transposed(std::int64_t layer, Linear which) const;  // [in, out]

 private:
  int tensor(std::int64_t layer, Linear which, Role role) const {
    return static_cast<int>((layer * kLinears + static_cast<int>(which)) * 3 + static_cast<int>(role));
  }
  std::uint8_t* scratch(Linear which, Role role) const;

  const FusedShape& shape_;
  const FusedParameters& parameters_;
  bool current_ = true;
  kernels::cuda::Fp8Scales scales_;
  std::uint8_t* is_gradient_ = nullptr;
  std::uint8_t* weights_ = nullptr;
  std::uint8_t* weights_transposed_ = nullptr;
  std::uint8_t* narrow_ = nullptr;  // [rows, hidden or attention width]
  std::uint8_t* wide_ = nullptr;    // [rows, the widest of the others]
};

}  // namespace lockstep::engine::cuda
