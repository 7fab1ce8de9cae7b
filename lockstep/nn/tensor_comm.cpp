#include "lockstep/nn/tensor_comm.h"

#include <algorithm>
#include <array>

#include "lockstep/base/error.h"
#include "lockstep/nn/device_thread.h"

namespace lockstep::nn {

comm::DType dtype_of(torch::ScalarType type) {
  // In DType's order.
  constexpr std::array kTypes{torch::kFloat64, torch::kFloat32, torch::kHalf, torch::kBFloat16,
                              torch::kInt64,   torch::kInt32,   torch::kUInt8};
  const auto found = std::find(kTypes.begin(), kTypes.end(), type);
  if (found == kTypes.end()) {
    throw InternalError(std::string("no collective carries tensors of dtype ") + c10::toString(type));
  }
  return static_cast<comm::DType>(found - kTypes.begin());
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
