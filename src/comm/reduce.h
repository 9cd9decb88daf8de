// Element-wise reduction of the same elements of several ranks, in the order of the ranks: the same bits wherever it is done.
#pragma once

#include <span>

#include "comm/operation.h"
#include "device/aten.h"

namespace ingot::comm {

/// output[i] = the reduction over sources of source[i]; output may be one of the sources. bf16 adds in fp32 and rounds once.
void reduce(void* output, std::span<const void* const> sources, int64_t elements, at::ScalarType dtype, Reduction reduction);

}  // namespace ingot::comm
