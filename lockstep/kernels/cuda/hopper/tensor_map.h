// Descriptions of matrices for the TMA.
#pragma once

#include <cuda.h>

#include "lockstep/kernels/cuda/types.h"

namespace lockstep::kernels::cuda::hopper {

// Of a bf16 matrix [rows, columns] (columns contiguous, a multiple of 8; data 16-byte aligned) that is copied in boxes
// of [box_rows, 64], their lines swizzled over 128 bytes. Encoded on the host, about a microsecond; passed to kernels
// by value. Throws where the driver has no such function or refuses the matrix.
CUtensorMap tensor_map(const Bf16* data, std::int64_t rows, std::int64_t columns, unsigned box_rows);

}  // namespace lockstep::kernels::cuda::hopper
