#include "parallel/storage.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>

namespace ingot::parallel {

void give_storage(const at::Tensor& tensor) {
  auto storage = tensor.storage();
  if (storage.data() != nullptr || storage.nbytes() == 0) return;
  const c10::DeviceGuard guard(tensor.device());
  storage.set_data_ptr(c10::GetAllocator(tensor.device().type())->allocate(storage.nbytes()));
}

void drop_storage(const at::Tensor& tensor) { tensor.storage().set_data_ptr(c10::DataPtr(nullptr, tensor.device())); }

}  // namespace ingot::parallel
