// Of which scales of operands in 8 bits are made. Inner header.
#pragma once

#include "device/aten.h"

namespace ingot::kernels {

inline constexpr const char* kLargestOfRows = "ingot_largest_magnitude";

/// The largest magnitude of each row of x [m, n], fp32 [m]; x as takes_rows(x, kLargestOfRows) wants it. NaNs may be passed over.
at::Tensor largest_of_rows(const at::Tensor& x);

}  // namespace ingot::kernels
