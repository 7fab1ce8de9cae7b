#include "lockstep/engine/fused/fp8.h"

#include <algorithm>
#include <vector>

#include "lockstep/kernels/cuda/check.h"

namespace lockstep::engine::cuda {

using kernels::cuda::Fp8Format;
using kernels::cuda::Fp8Output;
using kernels::cuda::kFp8History;
using kernels::cuda::kFp8Stride;

namespace {
constexpr float kMargin = 0;  // powers of two kept free above the largest value seen
ElementType type_of(FusedFp8::Role role) {
  return role == FusedFp8::Role::kGradient ? ElementType::kE5m2 : ElementType::kE4m3;
}
}  // namespace

FusedFp8::FusedFp8(const FusedShape& shape, const FusedParameters& parameters)
    : shape_(shape), parameters_(parameters) {
  scales_.count = static_cast<int>(shape.layers * kLinears * 3);
}

void FusedFp8::want(DeviceArena& arena) {
  const std::int64_t rows = shape_.rows();
  arena.want(&scales_.amax, scales_.count);
  arena.want(&scales_.history, scales_.count * kFp8History);
  arena.want(&scales_.scale, scales_.count * kFp8Stride);
  arena.want(&scales_.inverse, scales_.count * kFp8Stride);
  arena.want(&scales_.slot, scales_.count);
  arena.want(&is_gradient_, scales_.count);
  // Copies lie at the offsets of the flat array, so the embedding's place stays unused in front: it is left out below.
  const std::int64_t begin = parameters_.matrix(0, Linear::kQkv).offset, end = parameters_.head().offset;
  arena.want(&weights_, end - begin);
  arena.want(&weights_transposed_, end - begin);
  arena.want(&narrow_, rows * std::max(shape_.hidden, shape_.attention_width()));
  arena.want(&wide_, rows * std::max(2 * shape_.ffn, shape_.qkv_width()));
}

void FusedFp8::initialize(cudaStream_t stream) {
  const std::size_t floats = scales_.count * sizeof(float);
  LOCKSTEP_CUDA(cudaMemsetAsync(scales_.amax, 0, floats, stream));
  LOCKSTEP_CUDA(cudaMemsetAsync(scales_.history, 0, floats * kFp8History, stream));
  LOCKSTEP_CUDA(cudaMemsetAsync(scales_.slot, 0, scales_.count * sizeof(std::int32_t), stream));
  const std::vector<float> ones(scales_.count * kFp8Stride, 1.0f);
  std::vector<std::uint8_t> gradients(scales_.count);
  for (int i = 0; i < scales_.count; ++i) gradients[i] = i % 3 == static_cast<int>(Role::kGradient);
  LOCKSTEP_CUDA(cudaMemcpyAsync(scales_.scale, ones.data(), floats * kFp8Stride, cudaMemcpyHostToDevice, stream));
  LOCKSTEP_CUDA(cudaMemcpyAsync(scales_.inverse, ones.data(), floats * kFp8Stride, cudaMemcpyHostToDevice, stream));
  LOCKSTEP_CUDA(cudaMemcpyAsync(is_gradient_, gradients.data(), gradients.size(), cudaMemcpyHostToDevice, stream));
  LOCKSTEP_CUDA(cudaStreamSynchronize(stream));
  scales_.gradients = is_gradient_;
}

std::uint8_t* FusedFp8::scratch(Linear which, Role role) const {
  const bool input = role == Role::kInput;
  switch (which) {
    case Linear::kQkv:
    case Linear::kGateUp:
      return input ? narrow_ : wide_;
    case Linear::kAttentionOut:
      return narrow_;
    case Linear::kDown:
      return input ? wide_ : narrow_;
  }
  return nullptr;
}

Fp8Output FusedFp8::output(std::int64_t layer, Linear which, Role role) const {
  if (current_) return {};
  const int i = tensor(layer, which, role);
  return {scratch(which, role), scales_.scale + i * kFp8Stride, scales_.amax + i,
          role == Role::kGradient ? Fp8Format::kE5m2 : Fp8Format::kE4m3};
}

void FusedFp8::settle(std::int64_t layer, Linear which, Role role, const Bf16* x, std::int64_t count,
                      cudaStream_t stream) {
  if (current_) quantize(layer, which, role, x, count, stream);
}

void FusedFp8::quantize(std::int64_t layer, Linear which, Role role, const Bf16* x, std::int64_t count,
                        cudaStream_t stream) {
  const int i = tensor(layer, which, role);
  if (current_) {
    kernels::cuda::measure_amax(x, count, scales_.amax + i, stream);
    kernels::cuda::current_scale(scales_, i, kMargin, stream);
  }
  const Fp8Format format = role == Role::kGradient ? Fp8Format::kE5m2 : Fp8Format::kE4m3;
  kernels::cuda::quantize(x, {scratch(which, role), scales_.scale + i * kFp8Stride, scales_.amax + i, format}, count,
                          stream);
}

void FusedFp8::quantize_weights(cudaStream_t stream) {
  const std::int64_t begin = parameters_.matrix(0, Linear::kQkv).offset;
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer)
    for (int w = 0; w < kLinears; ++w) {
      const Placed& p = parameters_.matrix(layer, static_cast<Linear>(w));
      const int i = tensor(layer, static_cast<Linear>(w), Role::kWeight);
      if (current_) {
        kernels::cuda::measure_amax(parameters_.weight(p), p.count(), scales_.amax + i, stream);
        kernels::cuda::current_scale(scales_, i, kMargin, stream);
      }
      const Fp8Output out{weights_ + (p.offset - begin), scales_.scale + i * kFp8Stride, scales_.amax + i,
                          Fp8Format::kE4m3};
      kernels::cuda::quantize_transpose(parameters_.weight(p), out, weights_transposed_ + (p.offset - begin), p.out,
                                        p.in, stream);
    }
}

void FusedFp8::end_step(cudaStream_t stream) { kernels::cuda::update_scales(scales_, kMargin, stream); }

Operand FusedFp8::activation(std::int64_t layer, Linear which, Role role) const {
  return {scratch(which, role), type_of(role), scales_.inverse + tensor(layer, which, role) * kFp8Stride};
}
Operand FusedFp8::weight(std::int64_t layer, Linear which) const {
  const std::int64_t place = parameters_.matrix(layer, which).offset - parameters_.matrix(0, Linear::kQkv).offset;
  return {weights_ + place, ElementType::kE4m3, scales_.inverse + tensor(layer, which, Role::kWeight) * kFp8Stride};
}
Operand FusedFp8::weight_transposed(std::int64_t layer, Linear which) const {
  const std::int64_t place = parameters_.matrix(layer, which).offset - parameters_.matrix(0, Linear::kQkv).offset;
  return {weights_transposed_ + place, ElementType::kE4m3,
          scales_.inverse + tensor(layer, which, Role::kWeight) * kFp8Stride};
}

}  // namespace lockstep::engine::cuda
