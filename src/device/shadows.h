// The tensors of one call and their shadows: the host's (CPU) or Meta's. Inner header.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <unordered_map>

#include "device/operator_facts.h"

namespace ingot::device {

class Shadows {
 public:
  Shadows(at::Device device, c10::DispatchKey key) : device_(device), key_(key) {}

  c10::IValue of(const c10::IValue& value, bool is_written);
  /// Kernels may give what they write another shape.
  void write_back();
  /// A result of the kernel as one of the device's tensors.
  c10::IValue back(const c10::IValue& value);

 private:
  struct Pair {
    at::Tensor ours, shadow;
    bool is_written;
    size_t before;  // the pair before this one over the same storage
  };
  static constexpr size_t kNone = SIZE_MAX;

  at::Tensor shadow(const at::Tensor& tensor, bool is_written);
  at::Tensor ours(const at::Tensor& result);
  bool is_host() const { return key_ == c10::DispatchKey::CPU; }

  at::Device device_;
  c10::DispatchKey key_;
  c10::SmallVector<Pair, 8> pairs_;
  std::unordered_map<const c10::StorageImpl*, size_t> last_over_;  // of a storage of ours: its last pair
};

}  // namespace ingot::device
