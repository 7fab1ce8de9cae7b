#include "lockstep/nn/tensor_comm.h"

#include "lockstep/base/error.h"
#include "lockstep/nn/device_thread.h"

namespace lockstep::nn {

comm::DType dtype_of(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat64:
      return comm::DType::kF64;
    case torch::kFloat32:
      return comm::DType::kF32;
    case torch::kHalf:
      return comm::DType::kF16;
    case torch::kBFloat16:
      return comm::DType::kBF16;
    case torch::kInt64:
      return comm::DType::kI64;
    case torch::kInt32:
      return comm::DType::kI32;
    case torch::kUInt8:
      return comm::DType::kU8;
    default:
      throw InternalError(std::string("no collective carries tensors of dtype ") + c10::toString(type));
  }
}

namespace {

comm::Buffer memory_of(const torch::Tensor& tensor, std::int64_t count, comm::DType dtype) {
  LOCKSTEP_ASSERT(tensor.is_contiguous(), "only contiguous tensors travel");
  if (tensor.is_cpu()) return {tensor.data_ptr(), count, dtype};
  return {tensor.data_ptr(), count, dtype, tensor.device().index(), current_stream(tensor.device())};
}

}  // namespace

comm::Buffer buffer_of(const torch::Tensor& tensor) {
  return memory_of(tensor, tensor.numel(), dtype_of(tensor.scalar_type()));
}

comm::Buffer bytes_of(const torch::Tensor& tensor) {
  return memory_of(tensor, static_cast<std::int64_t>(tensor.nbytes()), comm::DType::kU8);
}

}  // namespace lockstep::nn
