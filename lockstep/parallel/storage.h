// Memory of a tensor that comes and goes while the tensor, its views and the autograd graphs that hold them stay.
#pragma once

#include <torch/types.h>

namespace lockstep::parallel {

// `tensor` owns its storage from the start of it (no view). Values are lost by free_storage() and undefined after
// allocate_storage(). Both do nothing where the memory is already so.
void free_storage(const torch::Tensor& tensor);
void allocate_storage(const torch::Tensor& tensor);

}  // namespace lockstep::parallel
