// torch::Tensor -> comm::Buffer: the Communicator moves raw memory and knows nothing of libtorch.
#pragma once

#include <torch/types.h>

#include "lockstep/comm/communicator.h"

namespace lockstep::nn {

// Throws InternalError for dtypes that no collective carries (bool, int16, complex).
comm::DType dtype_of(torch::ScalarType type);

// The tensor's memory, and on a device the current stream of this thread. It must be contiguous and outlive the
// operation: keep the tensor until Work::wait() returned.
comm::Buffer buffer_of(const torch::Tensor& tensor);

// The same memory as bytes, whatever the dtype.
comm::Buffer bytes_of(const torch::Tensor& tensor);

}  // namespace lockstep::nn
