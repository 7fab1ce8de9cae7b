// Element types, reductions and raw buffers of the communicator. No libtorch here: a buffer is a pointer and a count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "lockstep/base/enum_names.h"

namespace lockstep::comm {

// The numbers are part of the plugin interface.
enum class DType : std::int32_t { kF64 = 0, kF32 = 1, kF16 = 2, kBF16 = 3, kI64 = 4, kI32 = 5, kU8 = 6 };
inline constexpr DType kAllDTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16,
                                       DType::kI64, DType::kI32, DType::kU8};

enum class ReduceOp : std::int32_t { kSum = 0, kMax = 1, kMin = 2 };
inline constexpr ReduceOp kAllReduceOps[] = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin};

constexpr auto names_of(DType) { return enum_names<DType::kU8>("f64", "f32", "f16", "bf16", "i64", "i32", "u8"); }
constexpr auto names_of(ReduceOp) { return enum_names<ReduceOp::kMin>("sum", "max", "min"); }
using lockstep::to_string;

// Bytes of one element; 0 for a value that is none of DType's.
constexpr std::int64_t size_of(DType dtype) {
  constexpr std::int64_t kSizes[] = {8, 4, 2, 2, 8, 4, 1};
  const auto index = static_cast<std::size_t>(dtype);
  return index < std::size(kSizes) ? kSizes[index] : 0;
}

inline constexpr int kHostMemory = -1;

// Memory that the caller owns and keeps alive and untouched until the operation is done. Host memory, or memory of a
// CUDA device where the backend can reach it (local with a device, nccl). `stream` is the queue of that device on which
// the caller's kernels produce and consume the buffer: operations on device memory are ordered with it.
struct Buffer {
  void* data = nullptr;
  std::int64_t count = 0;  // elements
  DType dtype = DType::kF32;
  int device = kHostMemory;  // or the index of a CUDA device
  void* stream = nullptr;    // cudaStream_t

  std::int64_t bytes() const { return count * size_of(dtype); }
};

struct ConstBuffer {
  const void* data = nullptr;
  std::int64_t count = 0;  // elements
  DType dtype = DType::kF32;
  int device = kHostMemory;
  void* stream = nullptr;

  ConstBuffer() = default;
  ConstBuffer(const void* at, std::int64_t elements, DType type, int where = kHostMemory, void* queue = nullptr)
      : data(at), count(elements), dtype(type), device(where), stream(queue) {}
  ConstBuffer(const Buffer& buffer)
      : data(buffer.data), count(buffer.count), dtype(buffer.dtype), device(buffer.device), stream(buffer.stream) {}

  std::int64_t bytes() const { return count * size_of(dtype); }
};

}  // namespace lockstep::comm
