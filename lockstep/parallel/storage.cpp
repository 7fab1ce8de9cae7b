#include "lockstep/parallel/storage.h"

#include <c10/core/Allocator.h>

namespace lockstep::parallel {
namespace {

c10::StorageImpl& storage_of(const torch::Tensor& tensor) { return *tensor.storage().unsafeGetStorageImpl(); }

}  // namespace

void free_storage(const torch::Tensor& tensor) {
  c10::StorageImpl& storage = storage_of(tensor);
  if (storage.nbytes() == 0) return;
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, tensor.device()));
  storage.set_nbytes(0);
}

void allocate_storage(const torch::Tensor& tensor) {
  c10::StorageImpl& storage = storage_of(tensor);
  const std::size_t bytes = static_cast<std::size_t>(tensor.numel()) * tensor.element_size();
  if (storage.nbytes() == bytes) return;
  storage.set_data_ptr_noswap(c10::GetAllocator(tensor.device().type())->allocate(bytes));
  storage.set_nbytes(bytes);
}

}  // namespace lockstep::parallel
