#include "parallel/memory_pool.h"

#include <c10/core/CPUAllocator.h>

namespace ingot::parallel {

void MemoryPool::attach(const at::Tensor& tensor) {
  auto storage = tensor.storage();
  if (storage.data() != nullptr || storage.nbytes() == 0) return;
  if (const auto found = free_.find(storage.nbytes()); found != free_.end()) {
    storage.set_data_ptr(std::move(found->second));
    free_.erase(found);
    return;
  }
  storage.set_data_ptr(c10::GetAllocator(tensor.device().type())->allocate(storage.nbytes()));
}

void MemoryPool::detach(const at::Tensor& tensor) {
  auto storage = tensor.storage();
  if (storage.data() == nullptr) return;
  free_.emplace(storage.nbytes(), storage.set_data_ptr(c10::DataPtr(nullptr, tensor.device())));
}

void MemoryPool::drop(const at::Tensor& tensor) { tensor.storage().set_data_ptr(c10::DataPtr(nullptr, tensor.device())); }

}  // namespace ingot::parallel
