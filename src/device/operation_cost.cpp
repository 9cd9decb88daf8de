#include "device/operation_cost.h"

#include <algorithm>
#include <array>

#include "device/aten.h"

namespace ingot::device {

double flops_of(std::string_view name, at::ArrayRef<c10::IValue> arguments) {
  const auto matmul = [&](size_t left, size_t right) {
    const auto &a = arguments[left].toTensor(), &b = arguments[right].toTensor();
    return 2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(-1));
  };
  if (name == "aten::mm" || name == "aten::bmm") return matmul(0, 1);
  if (name == "aten::addmm" || name == "aten::baddbmm") return matmul(1, 2);
  if (name == "aten::mv" || name == "aten::dot" || name == "aten::vdot") return 2.0 * static_cast<double>(arguments[0].toTensor().numel());
  if (name == "aten::addmv") return 2.0 * static_cast<double>(arguments[1].toTensor().numel());
  return 0;
}

bool waits_for_device(std::string_view name, std::string_view overload) {
  constexpr std::array kWaiting = {"aten::equal",   "aten::nonzero",           "aten::masked_select", "aten::bincount",
                                   "aten::_unique", "aten::_unique2",          "aten::unique_dim",    "aten::is_nonzero",
                                   "aten::histc",   "aten::unique_consecutive"};
  if (name == "aten::repeat_interleave") return overload == "Tensor";
  return std::find(kWaiting.begin(), kWaiting.end(), name) != kWaiting.end();
}

}  // namespace ingot::device
