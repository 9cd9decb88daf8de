#include "device/shadows.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>

#include "device/memory.h"
#include "device/state.h"

namespace ingot::device {

c10::IValue Shadows::of(const c10::IValue& value, bool is_written) {
  if (value.isTensor()) return is_ours(value.toTensor()) ? c10::IValue(shadow(value.toTensor(), is_written)) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorList()) list.push_back(is_ours(tensor) ? shadow(tensor, is_written) : tensor);
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
      if (tensor && is_ours(*tensor)) tensor = shadow(*tensor, is_written);
      list.push_back(std::move(tensor));
    }
    return list;
  }
  if (value.isDevice() && is_virtual(value.toDevice())) return at::Device(is_host() ? at::kCPU : at::kMeta);
  return value;
}

void Shadows::write_back() {
  for (auto& [ours, shadow, is_written, before] : pairs_) {
    if (!is_written || (ours.sizes() == shadow.sizes() && ours.strides() == shadow.strides())) continue;
    const auto bytes = at::detail::computeStorageNbytes(shadow.sizes(), shadow.strides(), shadow.dtype().itemsize(),
                                                        static_cast<size_t>(shadow.storage_offset()));
    auto* storage = ours.storage().unsafeGetStorageImpl();
    if (bytes > storage->nbytes()) {
      storage->set_data_ptr_noswap(virtual_allocator()->allocate(bytes));
      storage->set_nbytes(bytes);
    }
    ours.unsafeGetTensorImpl()->set_sizes_and_strides(shadow.sizes(), shadow.strides());
    if (is_host() && shadow.numel() > 0) shadow_of(ours, key_).copy_(shadow);
  }
}

c10::IValue Shadows::back(const c10::IValue& value) {
  if (value.isTensor()) return ours(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : value.toTensorList()) list.push_back(ours(tensor));
  return list;
}

at::Tensor Shadows::shadow(const at::Tensor& tensor, bool is_written) {
  auto& last = last_over_.try_emplace(tensor.storage().unsafeGetStorageImpl(), kNone).first->second;
  for (size_t i = last; i != kNone; i = pairs_[i].before) {
    auto& pair = pairs_[i];
    if (!pair.ours.is_same(tensor)) continue;
    pair.is_written = pair.is_written || is_written;
    return pair.shadow;
  }
  auto made = tensor_over(last != kNone ? pairs_[last].shadow.storage() : shadow_of(tensor.storage(), key_), key_, tensor);
  pairs_.push_back({tensor, made, is_written, last});
  last = pairs_.size() - 1;
  return made;
}

at::Tensor Shadows::ours(const at::Tensor& result) {
  if (!result.defined() || is_ours(result)) return result;
  for (const auto& pair : pairs_)
    if (pair.shadow.is_same(result)) return pair.ours;
  for (const auto& pair : pairs_)
    if (result.has_storage() && pair.shadow.storage().unsafeGetStorageImpl() == result.storage().unsafeGetStorageImpl())
      return tensor_over(pair.ours.storage(), c10::DispatchKey::PrivateUse1, result);
  const at::Tensor made = at::detail::empty_strided_generic(result.sizes(), result.strides(), virtual_allocator(),
                                                            c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), result.scalar_type());
  if (is_host() && result.numel() > 0) shadow_of(made, key_).copy_(result);
  return made;
}

}  // namespace ingot::device
